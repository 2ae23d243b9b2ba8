"""Steps of a job, and its workers' waits at the coordinator."""
