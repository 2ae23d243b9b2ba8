"""Rows of sparse tables in files."""
