"""Which pairs of hosts are measured at the same time: none of them shares a host with another."""

from __future__ import annotations

from collections.abc import Sequence


def rounds(names: Sequence[str], most: int) -> list[list[tuple[str, str]]]:
    """Return rounds of pairs such that every two hosts meet once, as in a tournament; ``most`` rounds at most.

    The circle method: the first stays, all others go around. A host alone is measured with itself.
    """
    if len(names) == 1:
        return [[(names[0], names[0])]]
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found[:most]
