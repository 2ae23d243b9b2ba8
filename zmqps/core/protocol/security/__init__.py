"""A peer's identity, and what it may send."""
