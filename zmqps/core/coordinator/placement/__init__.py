"""Where the copies of shards live: how a job starts, and how its shards move, are lost and are cut anew."""
