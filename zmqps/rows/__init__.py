"""Rows of sparse tables: how they are found, kept, and begun; no messages, no optimizer."""
