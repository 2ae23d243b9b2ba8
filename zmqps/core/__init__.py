"""The sans-IO core: messages, key space, shards, membership, sessions.

Nothing here opens a socket, reads a clock or starts a thread. Every machine has one door,
``handle(event, now) -> actions``, one deadline, ``next_deadline() -> float | None``, and one
response to it, ``on_deadline(now) -> actions``; ``validate()`` asserts its invariants for tests.
"""
