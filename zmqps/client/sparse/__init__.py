"""Sparse tables in a script: rows, caches, copies that follow, files."""
