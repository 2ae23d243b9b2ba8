"""What a process needs of its host: addresses, ports, signals, memory, child processes."""
