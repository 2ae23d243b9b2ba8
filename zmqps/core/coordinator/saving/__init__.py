"""Checkpoints: when there is to be one, and what is done for it."""
