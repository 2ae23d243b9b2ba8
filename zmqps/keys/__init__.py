"""Keys of a cluster: which processes may join it, and the encryption of its connections.

A cluster that other hosts can reach has keys. `create` makes a directory of them for its nodes, and `token` the one
string that a process needs to join it. docs/security.md says what keys protect, and what they do not.
"""

from .directory import create, entries, revoke, rotate, token
from .keyring import Entry, Keys, Pair, find_keys, load_node_keys, moment

__all__ = [
    "Entry",
    "Keys",
    "Pair",
    "create",
    "entries",
    "find_keys",
    "load_node_keys",
    "moment",
    "revoke",
    "rotate",
    "token",
]
