"""How a job's shards are divided again: into pieces that belong to one old and one new shard, then back together.

New servers get their part in three steps: shards are divided into pieces in place, pieces move, and the pieces of one
new shard, which are on one server by then, are joined there. So only the moves need the network.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from zmqps.core.job.keyspace import Placement, Slice

T = TypeVar("T")

#: First and one-past-last element of a shard in each table.
Bounds = tuple[tuple[int, int], ...]


def bounds_of(placement: Placement, shard: int) -> Bounds:
    """Return a shard's part of each table."""
    return tuple((cuts[shard], cuts[shard + 1]) for cuts in placement.cuts)


def overlaps(one: Bounds, other: Bounds) -> bool:
    """Whether two shards have a common element."""
    return any(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))


def parents(before: Placement, after: Placement, shard: int) -> tuple[int, ...]:
    """Return the old shards with elements of a new one."""
    mine = bounds_of(after, shard)
    return tuple(number for number in range(before.num_shards) if overlaps(bounds_of(before, number), mine))


def owners(pieces: Placement, after: Placement) -> tuple[int | None, ...] | None:
    """Return the new shard of each piece, None for one without elements.

    None for all: some piece belongs to several.
    """
    found: list[int | None] = []
    for piece in range(pieces.num_shards):
        its = parents(after, pieces, piece)
        if len(its) > 1:
            return None
        found.append(its[0] if its else None)
    return tuple(found)


def pieces_of(before: Placement, after: Placement) -> Placement:
    """Return the coarsest placement whose shards each belong to one old and one new shard; in this order."""
    pairs = [(one, other) for one in range(before.num_shards) for other in parents(after, before, one)]
    if not pairs:  # an empty job
        return after
    cuts = []
    for table, (first, second) in enumerate(zip(before.cuts, after.cuts, strict=True)):
        # a piece without elements of a table begins where the previous one ends
        row = [min(max(first[one], second[other]), first[one + 1]) for one, other in pairs]
        cuts.append((*_ascending([0, *row[1:]]), before.keyspace.tables[table].size))
    return Placement(before.keyspace, tuple(cuts), before.slice_nbytes)


def _ascending(numbers: Sequence[int]) -> list[int]:
    result: list[int] = []
    for number in numbers:
        result.append(max(number, result[-1] if result else 0))
    return result


class Lookup(Generic[T]):
    """Finds the sources of a slice's elements.

    Parameters
    ----------
    slices
        The sources, with their disjoint slices.
    """

    def __init__(self, slices: Iterable[tuple[Slice, T]]) -> None:
        self._by_table: defaultdict[int, list[tuple[Slice, T]]] = defaultdict(list)
        for slice_, item in slices:
            self._by_table[slice_.table].append((slice_, item))
        for found in self._by_table.values():
            found.sort(key=lambda pair: pair[0].start)
        self._starts = {table: [slice_.start for slice_, _ in found] for table, found in self._by_table.items()}

    def over(self, wanted: Slice) -> Iterator[tuple[T, slice, slice]]:
        """Yield the sources with elements of a slice, with their places in that slice and in their own."""
        found = self._by_table.get(wanted.table, [])
        first = bisect_right(self._starts.get(wanted.table, []), wanted.start) - 1
        for place in range(max(0, first), len(found)):
            own, item = found[place]
            if own.start >= wanted.stop:
                return
            start, stop = max(wanted.start, own.start), min(wanted.stop, own.stop)
            if start < stop:
                yield item, slice(start - wanted.start, stop - wanted.start), slice(start - own.start, stop - own.start)
