"""What every machine needs whatever its role: joining, asking for the status, saying things not too often."""
