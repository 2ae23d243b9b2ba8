"""Where the copies of shards are: how a job starts, and how its shards move, are lost and are recut."""
