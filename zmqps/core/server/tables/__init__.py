"""The sparse tables of a shard: their rows, changes, and snapshots."""
