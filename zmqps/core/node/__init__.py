"""What every machine needs whatever its role: joining, asking for the status, a limit on log lines."""
