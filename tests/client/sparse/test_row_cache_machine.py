"""A worker with copies of rows beside a model with clocks, others that write at once, and answers that come late."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.client.sparse.test_row_cache import Slow
from zmqps.client.futures import begins
from zmqps.client.sparse.tables import Table


class Exact(RuleBasedStateMachine):
    """One worker with a cache, others that write at once, and answers that come late.

    The first element of a row has what this worker has pushed, the second what others have.
    """

    read_own, defer = True, True
    staleness = 2

    def __init__(self) -> None:
        super().__init__()
        self.member = Slow()
        self.member.is_slow = True
        self.items = self.member.items(6, staleness=self.staleness, defer=self.defer, read_own=self.read_own)
        self.own: dict[int, float] = {}
        self.others: dict[int, float] = {}
        self.others_at: list[dict[int, float]] = [{}]  # by clock: what they had pushed when it began
        self.own_at: list[dict[int, float]] = [{}]
        self.has_pulled = False
        self.coming: list[tuple[list[int], Future[Any], list[tuple[float, float]], list[float]]] = []

    def tick(self, *, pulls: bool, pushes: bool) -> None:
        if pushes or self.has_pulled:
            self.others_at.append(dict(self.others))
            self.own_at.append(dict(self.own))
        self.has_pulled = pulls

    ids = st.lists(st.integers(0, 12), min_size=1, max_size=5)

    def expect(self, ids: list[int], future: Future[Any]) -> None:
        """Note what may be read: own pushes all, or those before the bound; of others at least those before it."""
        at = max(0, len(self.others_at) - 1 - self.staleness)
        own, least = self.own if self.read_own else self.own_at[at], self.others_at[at]
        bounds = [(own.get(id_, 0.0), self.own.get(id_, 0.0)) for id_ in ids]
        self.coming.append((ids, future, bounds, [least.get(id_, 0.0) for id_ in ids]))

    @rule(ids=ids)
    def pull(self, ids):
        self.tick(pulls=True, pushes=False)
        self.expect(ids, self.items.pull_async(ids))

    @rule(ids=ids)
    def push(self, ids):
        self.tick(pulls=False, pushes=True)
        self.items.push_async(ids, [[-1.0, 0.0]] * len(ids))
        for id_ in ids:
            self.own[id_] = self.own.get(id_, 0.0) + 1.0

    @rule(ids=ids, following=ids)
    def push_pull(self, ids, following):
        self.tick(pulls=True, pushes=True)
        for id_ in ids:
            self.own[id_] = self.own.get(id_, 0.0) + 1.0
        self.expect(following, self.items.push_pull_async(ids, [[-1.0, 0.0]] * len(ids), following))

    @rule(id_=st.integers(0, 12))
    def other(self, id_):
        self.others[id_] = self.others.get(id_, 0.0) + 1.0
        row = self.member.rows.get(id_, np.zeros(2, np.float32))
        self.member.rows[id_] = row + np.array([0.0, 1.0], np.float32)

    @precondition(lambda self: self.member.waiting)
    @rule(data=st.data())
    def answer(self, data):
        self.member.answer(data.draw(st.integers(0, len(self.member.waiting) - 1)))
        self.look()

    @rule()
    def flush(self):
        begins(Table.flush)(self.items)
        rows = self.member.rows
        assert {id_: float(row[0]) for id_, row in rows.items() if row[0]} == self.own
        assert {id_: float(row[1]) for id_, row in rows.items() if row[1]} == self.others

    def look(self) -> None:
        for entry in [entry for entry in self.coming if entry[1].done()]:
            self.coming.remove(entry)
            _, future, bounds, least = entry
            for row, (low, high), others in zip(future.result(), bounds, least, strict=True):
                assert low <= row[0] <= high
                assert row[1] >= others

    def teardown(self) -> None:
        while self.member.waiting:
            self.member.answer(0)
        self.look()
        assert not self.coming
        self.flush()
        self.member.caches["items"]._cache.validate()


class Through(Exact):
    defer = False


class Unseen(Exact):
    read_own = False


SETTINGS = settings(max_examples=15, stateful_step_count=40)
TestExact, TestThrough, TestUnseen = Exact.TestCase, Through.TestCase, Unseen.TestCase
TestExact.settings = TestThrough.settings = TestUnseen.settings = SETTINGS
