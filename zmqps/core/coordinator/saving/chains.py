"""Which checkpoint the next one of a job with tables builds upon, if it is not to have all rows.

Parameters are always written whole. Only what is published is built upon, and only by the very copies of the shards
that wrote it: a copy that has taken over, was loaded from a checkpoint or lies elsewhere now has a number of its own. A
coordinator that was started again begins with a whole one, for it keeps nothing of this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A checkpoint that is published, and may be built upon."""

    number: int  # by which servers know it (`Save.number`)
    path: str
    shards: Mapping[int, int]  # of all copies that wrote it, by epoch
    length: int  # how many checkpoints it consists of, itself included
    whole_nbytes: int  # of the first of these, parameters included
    changed_nbytes: int  # of the others


class Chains:
    """The latest checkpoint of each job with tables, with all that it builds upon."""

    def __init__(self, full_every: int = 1) -> None:
        self._full_every = full_every  # every so many-th checkpoint of a job is whole
        self._links: dict[str, ChainLink] = {}  # by job

    def base(self, job: str, shards: Mapping[int, int]) -> ChainLink | None:
        """Return what the next checkpoint builds upon that copies of these epochs write; None: it is whole.

        It is whole as well once those that build upon a whole one take more room than that, so that a chain never
        becomes many times as large as what it stands for.
        """
        link = self._links.get(job)
        if link is None or dict(link.shards) != dict(shards) or link.length >= self._full_every:
            return None
        return link if link.changed_nbytes < link.whole_nbytes else None

    def published(
        self, job: str, number: int, path: str, shards: Mapping[int, int], nbytes: int, base: ChainLink | None
    ) -> None:
        """A checkpoint is there, which builds upon ``base``."""
        if self._full_every == 1:
            return
        self._links[job] = ChainLink(
            number=number,
            path=path,
            shards=shards,
            length=1 + (base.length if base is not None else 0),
            whole_nbytes=base.whole_nbytes if base is not None else nbytes,
            changed_nbytes=base.changed_nbytes + nbytes if base is not None else 0,
        )

    def forget(self, job: str) -> None:
        """The next checkpoint of a job is whole."""
        self._links.pop(job, None)

    def validate(self, jobs: Collection[str]) -> None:
        """Assert that chains are of jobs that are there, and no longer than they may be."""
        assert set(self._links) <= set(jobs)
        assert all(1 <= link.length <= self._full_every for link in self._links.values())
