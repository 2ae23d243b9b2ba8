"""What is trained and where it lies: the job, its parameters in the flat key space, its data sets."""
