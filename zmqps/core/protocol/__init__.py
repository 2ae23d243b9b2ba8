"""What the machines say to each other, and how it looks on the wire."""
