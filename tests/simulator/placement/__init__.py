"""Simulated copies of shards that move, are lost, saved and loaded, and what must hold then."""
