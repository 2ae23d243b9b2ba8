"""Log lines: written by nodes and workers, held back where they repeat, and read back by ``zmqps logs``."""
