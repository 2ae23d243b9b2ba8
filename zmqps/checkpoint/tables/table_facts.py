"""What a file with the rows of a sparse table says of it."""

from __future__ import annotations

from typing import NamedTuple


class TableFacts(NamedTuple):
    """The metadata of a file."""

    table: str
    dim: int
    job: str
    version: int  # every update up to it is in the rows
    package: str  # the version of zmqps that has written it

    def texts(self) -> dict[str, str]:
        """Return them as metadata."""
        return {f"zmqps.{name}": str(value) for name, value in self._asdict().items()}
