"""The processes of a cluster: a machine of the core on sockets, from the start to the exit code."""
