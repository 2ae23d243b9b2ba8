"""Log lines: written by nodes and workers, held back when they repeat, and read by ``zmqps logs``."""
