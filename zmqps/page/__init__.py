"""The page: a view of a cluster in a browser, served by a thread of the coordinator's process."""
