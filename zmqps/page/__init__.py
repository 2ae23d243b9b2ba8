"""The page: what there is to see of a cluster, in a browser; served by a thread of the coordinator's process."""
