"""What every machine needs in any role: joining, asking for the status, a limit on log lines."""
