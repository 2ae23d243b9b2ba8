"""The connections of a worker to the servers of its job: requests queued, in flight, and resent."""
