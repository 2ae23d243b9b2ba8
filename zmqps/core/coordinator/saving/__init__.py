"""Checkpoints: when to make one, and how."""
