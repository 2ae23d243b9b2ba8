"""Whether this checkout is slower than an earlier version of it, measured in turns; see docs/performance.md."""
