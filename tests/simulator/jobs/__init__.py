"""What simulated workers train, and what the values must be."""
