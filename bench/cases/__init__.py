"""One case a file; each has a ``command`` and measures one row."""
