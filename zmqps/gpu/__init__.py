"""GPUs behind one door: memory, streams and encoding on a device, for servers and workers."""
