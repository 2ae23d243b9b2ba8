"""Clusters that a command starts, from their start to their end, and what they say."""
