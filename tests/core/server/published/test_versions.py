"""A slice's versions, against a reference that keeps each of them whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zmqps import deltas
from zmqps.codecs import bf16
from zmqps.core.server.published.versions import SliceVersions

Array = np.ndarray[Any, np.dtype[Any]]
SIZE, KEEP = 300, 4


def as_they_are(values: Array) -> Array:
    return deltas.words(values).copy()


def rounded(values: Array) -> Array:
    return bf16().encode(values).view(np.uint16).copy()


class Readers(RuleBasedStateMachine):
    """Values that change, cuts, and readers that get any version kept, by a delta or whole."""

    @initialize(half=st.booleans(), most_nbytes=st.sampled_from([0, 150, 10_000]), seed=st.integers(0, 99))
    def begin(self, half: bool, most_nbytes: int, seed: int) -> None:
        self.bits = rounded if half else as_they_are
        self.rng = np.random.default_rng(seed)
        self.values = self.rng.normal(size=SIZE).astype(np.float32)
        self.versions = SliceVersions(self.bits, KEEP, most_nbytes, "numpy")
        self.whole: dict[int, Array] = {}  # all there have been since the last `forget`
        self.number = 0

    @rule(share=st.sampled_from([0.0, 0.01, 0.3, 1.0]), by=st.sampled_from([1e-7, 1e-3, 1.0]))
    def change(self, share: float, by: float) -> None:
        changed = self.rng.random(SIZE) < share
        self.values[changed] += self.rng.normal(size=SIZE).astype(np.float32)[changed] * np.float32(by)

    @rule(ahead=st.integers(1, 3))
    def cut(self, ahead: int) -> None:
        self.number += ahead
        self.versions.cut(self.number, self.values)
        self.whole[self.number] = self.bits(self.values)

    @rule()
    def forget(self) -> None:
        self.versions.forget()
        self.whole = {}

    @precondition(lambda self: self.whole)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        number, held = (data.draw(st.sampled_from([*self.whole])) for _ in range(2))
        words = self.versions.words(number)
        assert (words is None) == (number not in self.versions)
        if words is not None:
            assert np.array_equal(words, self.whole[number])
            assert self.versions.checksum(number) == xxhash.xxh3_64_intdigest(self.whole[number])
        if held >= number:
            with pytest.raises(ValueError, match="does not follow"):
                self.versions.since(held, number)
            return
        delta = self.versions.since(held, number)
        assert (delta is None) == (held not in self.versions or number not in self.versions)
        if delta is not None:
            copy = self.whole[held].copy()
            deltas.add(delta, copy, backend="numpy")
            assert np.array_equal(copy, self.whole[number])

    @precondition(lambda self: self.whole)
    @invariant()
    def the_newest_are_kept(self) -> None:
        assert self.versions.newest == max(self.whole)
        assert self.versions.oldest is not None
        kept = [number for number in self.whole if number >= self.versions.oldest]
        assert all(number in self.versions for number in kept)
        assert 1 <= len(kept) <= KEEP

    @invariant()
    def it_is_valid(self) -> None:
        if hasattr(self, "versions"):
            self.versions.validate()


TestReaders = Readers.TestCase
TestReaders.settings = settings(max_examples=30, stateful_step_count=25)


def test_the_oldest_versions_go_where_their_deltas_need_too_much_room() -> None:
    versions = SliceVersions(as_they_are, 10, 40, "numpy")
    values = np.zeros(1000, np.float32)
    for number in range(1, 8):
        values[number] += 1
        versions.cut(number, values)
    one = versions.since(6, 7)
    assert one is not None
    assert one.nbytes == 13
    assert (versions.oldest, versions.newest) == (4, 7)
    assert versions.nbytes == values.nbytes + 3 * 13
    values += 1  # each has changed: one delta is more than there is room for
    versions.cut(8, values)
    assert (versions.oldest, versions.newest) == (8, 8)
    assert versions.nbytes == values.nbytes


def test_nothing_that_was_given_out_changes_with_the_next_version() -> None:
    versions = SliceVersions(as_they_are, 3, 10_000, "numpy")
    values = np.zeros(100, np.float32)
    versions.cut(1, values)
    words = versions.words(1)
    assert words is not None
    values += 1
    versions.cut(2, values)
    assert not words.any()
