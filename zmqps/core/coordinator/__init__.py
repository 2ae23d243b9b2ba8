"""The coordinator's machine: membership, jobs, and which members may proceed or must wait."""
