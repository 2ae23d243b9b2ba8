"""What a process asks of its host: addresses, ports, signals, memory, its children."""
