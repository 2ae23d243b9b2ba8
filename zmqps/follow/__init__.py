"""Read-only copies of sparse tables for services that read them: ``zmqps follow``, and lookups there."""

from .lookups import Lookups, connect

__all__ = ["Lookups", "connect"]
