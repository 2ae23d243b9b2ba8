"""Views for watchers of a cluster: figures, events, traces, the status."""
