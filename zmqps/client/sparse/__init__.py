"""Sparse tables as a script uses them: rows, caches, copies that follow, files."""
