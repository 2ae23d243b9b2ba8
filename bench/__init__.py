"""The benchmark suite: what zmqps does in a second, beside what the machine could do in the same second."""
