"""Steps of a job, and what its workers wait for at the coordinator."""
