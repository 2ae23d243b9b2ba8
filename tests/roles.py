"""Writes the table of roles and messages into docs/security.md; `make roles` runs it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.imports import ROOT
from zmqps.core.protocol.security.roles import ALLOWS, STRANGER, TABLE, Row

DOCUMENT = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- written by `make roles` -->", "<!-- end of what `make roles` writes -->"
#: In this order roles stand in a cell.
ORDER = ("stranger", "observer", "worker", "server", "operator", "coordinator", "backup")


def drawn(document: str) -> str:
    """Return the document with the tables as the source has them."""
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    return "\n".join([before + BEGIN, "", *keys(), "", *table(), "", END + after])


def keys() -> Iterator[str]:
    """Yield a table of what a connection with a key may be."""
    yield from ("| key of | what its connection may be |", "|---|---|")
    for key, roles in ALLOWS.items():
        yield f"| {'an' if key[0] == 'o' else 'a'} {key} | {', '.join(roles)} |"


def table() -> Iterator[str]:
    """Yield a table of who may send which message to the coordinator, and to a server."""
    yield from ("| message | may | to the coordinator | to a server |", "|---|---|---|---|")
    for row in TABLE:
        yield f"| {_message(row)} | {row.does} | {_roles(row.coordinator)} | {_roles(row.server)} |"


def _message(row: Row) -> str:
    return f"`{row.message.__name__}`" + (f" that names a {row.names}" if row.names else "")


def _roles(roles: frozenset[str]) -> str:
    return "any peer" if STRANGER in roles else ", ".join(role for role in ORDER if role in roles)


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))
