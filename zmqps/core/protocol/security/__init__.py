"""Who a peer is, and what it may send."""
