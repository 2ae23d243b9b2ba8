"""Treatments of stale gradients against their equations, and what a job may ask for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import PLAIN
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.treatments import TREATMENTS, Compensate, Divide, Drop, ReadCopies, make_treatment
from zmqps.errors import ConfigurationError, PSError
from zmqps.optim import sgd

G, W, READ = (np.array(values, "f4") for values in ([1.0, -2.0, 0.5], [3.0, 3.0, 3.0], [1.0, 4.0, 3.0]))


@for_each("staleness, factor", [(0, 1.0), (1, 1.0), (2, 0.5), (4, 0.25)])
def test_a_gradient_is_divided_by_its_staleness(staleness, factor) -> None:  # type: ignore[no-untyped-def]
    np.testing.assert_array_equal(Divide().correct(G, W, None, staleness), factor * G)


def test_a_gradient_beyond_the_bound_is_dropped() -> None:
    assert [Drop(2).drops(staleness) for staleness in range(5)] == [False, False, False, True, True]
    assert Drop(2).correct(G, W, None, 2) is G


def test_a_delay_is_compensated_by_the_change_since_the_read() -> None:
    expected = G + np.float32(0.5) * G * G * (W - READ)
    np.testing.assert_allclose(Compensate(0.5).correct(G, W, READ, 1), expected, rtol=1e-6)


def test_for_a_loss_whose_gradient_squared_is_its_curvature_the_compensation_is_first_order_exact() -> None:
    # f = -log w, so f' = -1/w and f'' = 1/w² = f'²: with λ = 1 the error is of second order
    read, now = np.array([2.0]), np.array([2.1])
    error = abs(Compensate(1.0).correct(-1 / read, now, read, 1) + 1 / now)
    assert error < 0.06 * abs(-1 / read + 1 / now)


@for_each("treatment", [Divide(), Drop(9), Compensate(0.04)])
def test_what_came_in_is_never_written_to(treatment) -> None:  # type: ignore[no-untyped-def]
    arrays = [array.copy() for array in (G, W, READ)]
    for array in arrays:
        array.flags.writeable = False
    assert treatment.correct(*arrays, 3).dtype == G.dtype
    assert treatment.correct(arrays[0], arrays[1], None, 3).shape == G.shape


def test_a_huge_gradient_is_not_made_nan_by_values_that_did_not_change() -> None:
    huge = np.full(3, 1e30, "f4")
    np.testing.assert_array_equal(Compensate(1.0).correct(huge, W, W, 1), huge)


@for_each("treatment", [Divide(), Drop(8), Compensate(0.04)])
def test_a_treatment_survives_the_wire(treatment) -> None:  # type: ignore[no-untyped-def]
    assert make_treatment(treatment.to_wire()) == treatment
    assert TREATMENTS[treatment.name] is type(treatment)


def test_no_treatment_is_none() -> None:
    assert make_treatment(None) is None


@for_each(
    "wire, text",
    [
        ({}, "one of compensate, divide, drop"),
        ({"name": "wait"}, "not 'wait'"),
        ({"name": ["drop"]}, "one of"),
        ({"name": "drop"}, "takes"),
        ({"name": "divide", "bound": 1}, "takes"),
        ({"name": "drop", "bound": -1}, "bound"),
        ({"name": "drop", "bound": True}, "bound"),
        ({"name": "compensate", "lambda": 0.0}, "lambda"),
        ({"name": "compensate", "lambda": float("nan")}, "lambda"),
        ({"name": "compensate", "lambda": "x" * 1000}, "lambda"),
    ],
)
def test_a_treatment_that_does_not_exist_is_refused(wire, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigurationError, match=text) as caught:
        make_treatment(wire)
    assert len(str(caught.value)) < 200


@given(st.dictionaries(st.sampled_from(["name", "bound", "lambda"]), PLAIN | st.sampled_from(sorted(TREATMENTS))))
def test_any_map_is_a_treatment_or_an_error_of_ours(wire) -> None:  # type: ignore[no-untyped-def]
    try:
        treatment = make_treatment(wire)
    except PSError:
        return
    assert treatment is not None
    assert treatment.to_wire() == wire


def test_a_job_has_a_treatment_where_gradients_can_be_stale() -> None:
    def job(mode: str) -> JobSpec:
        wire = Drop(3).to_wire()
        return JobSpec(
            parameters=(Parameter("w", (2,), "float32"),),
            optimizer=sgd(1.0).to_wire(),
            **MODES[mode],
            treatment=wire,
        )

    for mode in ("async", "bounded"):
        assert JobSpec.from_wire(job(mode).to_wire()) == job(mode)
    with pytest.raises(ConfigurationError, match="synchronous"):
        job("sync")


def test_copies_are_kept_for_each_worker_until_it_goes() -> None:
    copies = ReadCopies()
    value = np.zeros(4, "f4")
    copies.note(b"a", 0, 1, value)
    copies.note(b"b", 0, 1, value)
    value += 1
    copies.note(b"a", 0, 2, value)
    assert copies.nbytes == 2 * value.nbytes  # a's was overwritten
    assert copies.find(b"a", 0, 1) is None
    np.testing.assert_array_equal(copies.find(b"a", 0, 2), value)
    np.testing.assert_array_equal(copies.find(b"b", 0, 1), value - 1)
    assert copies.find(b"b", 1, 1) is None
    copies.forget(b"a")
    copies.forget(b"a")
    assert copies.find(b"a", 0, 2) is None
    assert copies.nbytes == value.nbytes
