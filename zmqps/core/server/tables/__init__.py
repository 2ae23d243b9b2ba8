"""The sparse tables of a shard: their rows, what has changed of them, and how they are kept."""
