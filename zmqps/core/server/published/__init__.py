"""Versions that readers may ask for: what is kept of them, and what a reader at one of them lacks of another."""
