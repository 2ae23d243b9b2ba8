"""A live view of a cluster in a terminal: ``zmqps top``."""
