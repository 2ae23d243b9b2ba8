"""What rows begin with."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError, ProtocolError
from zmqps.rows import loops
from zmqps.rows.hashing import seed_of
from zmqps.rows.initial import BELOW_TWO, Initial, filler

IDS = np.array([0, 1, -1, 2**63 - 1, -(2**63), 77], np.int64)


def rows(initial: Initial, ids: np.ndarray = IDS, dim: int = 8, table: str = "items") -> np.ndarray:
    out = np.full((ids.size, dim), np.nan, np.float32)
    filler(initial, table).fill(ids, out)
    return out


def test_compiled_and_interpreted_loops_write_the_same_bits():
    for kind, number in (("uniform", loops.UNIFORM), ("normal", loops.NORMAL)):
        made = rows(Initial(kind, -0.5, 0.5, 3))
        out = np.empty_like(made)
        with np.errstate(over="ignore"):
            seed = np.uint64(seed_of("initial", "items", 3))
            loops.fill(IDS, np.arange(IDS.size), out, seed, number, -0.5, 0.5, 0.0, 1.0)
        assert made.tobytes() == out.tobytes()


def test_numbers_do_not_change_from_release_to_release():
    known = [0.59989727, -1.8298457, -1.0939492, 0.11968794]
    assert rows(Initial("normal", 0.0, 1.0, 7))[0, :4].tolist() == [np.float32(number) for number in known]


def test_a_row_depends_on_seed_table_and_id_alone():
    initial = Initial("normal", 0.0, 1.0, 7)
    assert np.array_equal(rows(initial)[3:], rows(initial, IDS[3:]))
    assert np.array_equal(rows(initial, dim=4), rows(initial, dim=8)[:, :4])
    assert not np.array_equal(rows(initial), rows(initial, table="users"))
    assert not np.array_equal(rows(initial), rows(Initial("normal", 0.0, 1.0, 8)))


def test_normal_numbers_have_the_distribution():
    found = np.sort(rows(Initial("normal", 1.0, 2.0), np.arange(4000), 16).ravel())
    for share in (0.001, 0.02, 0.3, 0.5, 0.9, 0.999):
        expected = 1.0 + 2.0 * NormalDist().inv_cdf(share)
        assert found[int(share * found.size)] == pytest.approx(expected, abs=0.25 if share in (0.001, 0.999) else 0.05)


def test_truncated_normal_numbers_stay_within_two_deviations():
    found = rows(Initial("truncated_normal", 0.0, 0.5), np.arange(2000), 16)
    assert np.abs(found).max() <= 1.0
    assert found.std() == pytest.approx(0.5 * 0.8796, rel=0.02)
    assert BELOW_TWO == pytest.approx((NormalDist().cdf(-2.0), NormalDist().cdf(2.0)))


def test_uniform_numbers_fill_their_range():
    found = rows(Initial("uniform", -3.0, 1.0), np.arange(4000))
    assert found.min() >= -3.0
    assert found.max() <= 1.0
    assert found.mean() == pytest.approx(-1.0, abs=0.05)


def test_zeros_and_constants():
    assert not rows(Initial("zeros")).any()
    assert (rows(Initial("constant", 2.5)) == 2.5).all()


def test_only_named_rows_are_written():
    out = np.full((4, 2), 9.0, np.float32)
    filler(Initial("zeros"), "items").fill(np.array([5]), out, np.array([2]))
    assert out[:, 0].tolist() == [9.0, 9.0, 0.0, 9.0]


def test_it_travels():
    initial = Initial("uniform", -1, 1, 5)
    assert Initial.from_wire(initial.to_wire()) == initial


@for_each(
    "bad",
    [
        {"kind": "zeta"},
        {"kind": "normal", "b": -1.0},
        {"kind": "uniform", "a": 2.0, "b": 1.0},
        {"kind": "constant", "a": math.nan},
        {"kind": "constant", "a": 1e300},
        {"kind": "constant", "a": True},
        {"kind": "zeros", "seed": -1},
    ],
)
def test_what_no_row_can_begin_with_is_refused(bad):
    with pytest.raises(ConfigurationError):
        Initial(**bad)


@for_each("wire", [None, [], {}, {"kind": "zeros"}, {"kind": 3, "a": 0.0, "b": 0.0, "seed": 0}])
def test_a_malformed_map_is_refused(wire):
    with pytest.raises(ProtocolError):
        Initial.from_wire(wire)
