"""Other systems doing the same work, each in processes of its own; see README.md."""
