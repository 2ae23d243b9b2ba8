"""The optimizers that there are: one equation a file."""
