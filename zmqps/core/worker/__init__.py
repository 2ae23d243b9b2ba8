"""The worker's machine: operations in, messages to the coordinator and the servers out."""
