"""The permutation that nobody has to hold."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.job.data import mix, permuted


@given(size=st.integers(1, 3000), seed=st.integers(0, (1 << 63) - 1), data_pass=st.integers(0, 9))
def test_all_positions_together_are_a_permutation(size: int, seed: int, data_pass: int) -> None:
    assert np.array_equal(np.sort(permuted(0, size, size, seed, data_pass)), np.arange(size))


@given(size=st.integers(2, 3000), data=st.data())
def test_a_range_is_a_slice_of_the_permutation(size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start, size))
    assert np.array_equal(permuted(start, stop, size, 7, 3), permuted(0, size, size, 7, 3)[start:stop])


def test_seed_and_pass_change_the_order_and_nothing_else_does() -> None:
    orders = [permuted(0, 1000, 1000, seed, data_pass) for seed in range(3) for data_pass in range(3)]
    assert len({order.tobytes() for order in orders}) == 9
    assert np.array_equal(orders[0], permuted(0, 1000, 1000, 0, 0))
    golden = [
        481787711696,
        887159804706,
        333566807554,
        810988629997,
    ]  # a training that is resumed must find its order again
    assert permuted(0, 4, 1 << 40, 0, 0).tolist() == golden


@for_each("size", [10, 100, 1437])
def test_every_example_comes_at_every_place_about_equally_often(size: int) -> None:
    draws = 200
    places = np.array([permuted(0, size, size, seed, seed % 7) for seed in range(draws)])
    bins = min(size, 10)
    for example in (0, size // 2, size - 1):
        where = np.argmax(places == example, axis=1) * bins // size
        counts = np.bincount(where, minlength=bins)
        chi2 = ((counts - draws / bins) ** 2 / (draws / bins)).sum()
        assert chi2 < 35, "the 1 in 10,000 quantile for nine degrees of freedom is 33.7"


def test_neighbours_are_torn_apart() -> None:
    order = permuted(0, 4096, 4096, 0, 0)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert (np.abs(np.diff(order)) == 1).sum() < 10


def test_the_mixer_depends_on_every_word_and_its_place() -> None:
    assert len({mix(1, 2, 3), mix(1, 3, 2), mix(1, 2), mix(2, 1), mix(1, 2, 3, 0)}) == 5
    assert all(0 <= mix(n, 1 << 63) < 1 << 64 for n in range(10))
