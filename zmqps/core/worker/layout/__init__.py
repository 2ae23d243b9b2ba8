"""What a worker does when shards move, go back or are divided again."""
