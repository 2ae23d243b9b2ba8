"""Moves frames between machines: transports and the driver loop."""
