"""Membership: how nodes join, the place and rank of each, and how they leave."""
