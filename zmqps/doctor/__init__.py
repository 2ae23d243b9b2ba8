"""What may go wrong before a run, looked at on each host."""
