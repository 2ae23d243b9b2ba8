"""The machines' messages, and their form on the wire."""
