"""What those see that watch a cluster: figures, events, traces, the status."""
