"""Rows of sparse tables: how they are found, stored and initialized; no messages, no optimizer."""
