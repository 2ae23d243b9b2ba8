"""The server's machine: shards, the ledger, and the answers to workers."""
