"""The connections of a worker to the servers of its job: what is queued, in flight, and sent again."""
