"""Copies of a shard: what a leader tells its backups, and what these make of it."""
