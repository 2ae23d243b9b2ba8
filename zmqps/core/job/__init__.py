"""What is trained and where it is stored: the job, its parameters in the flat key space, its data sets."""
