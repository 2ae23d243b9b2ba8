"""What is asserted of what simulated nodes say to those that look."""
