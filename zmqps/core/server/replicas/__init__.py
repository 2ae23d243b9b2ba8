"""Copies of a shard: what a leader sends its backups, and how they apply it."""
