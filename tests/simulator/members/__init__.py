"""Simulated nodes that come, go, die and stand still, and what must hold then."""
