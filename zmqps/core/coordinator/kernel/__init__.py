"""What trains: a job with its members, its start, its steps and barriers; everything else extends it."""
