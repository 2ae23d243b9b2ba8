"""The job: its wire form, what cannot be trained, and what makes two jobs differ."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import PLAIN
from zmqps.core.job import MAX_NAME_CHARS, STORAGE_DTYPES, JobSpec, Parameter, attached
from zmqps.errors import ConfigurationError, DtypeError, JobError, JobMismatchError, ProtocolError, PSError

OPTIMIZER = {"name": "sgd", "learning_rate": 0.1}
W, B = Parameter("w", (3, 4), "float32"), Parameter("b", (), "float16")
JOB = JobSpec((W, B), OPTIMIZER)


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    names = draw(st.lists(st.text(max_size=20), min_size=1, max_size=6, unique=True))
    shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
    dtypes = st.sampled_from(list(STORAGE_DTYPES))
    parameters = tuple(Parameter(name, draw(shapes), draw(dtypes)) for name in names)
    return JobSpec(parameters, {"name": draw(st.text(max_size=5))}, None, draw(st.sampled_from(["reject", "allow"])))


@given(jobs())
def test_a_job_survives_the_wire(job) -> None:  # type: ignore[no-untyped-def]
    assert JobSpec.from_wire(job.to_wire()) == job


@given(st.dictionaries(st.sampled_from(["parameters", "optimizer", "staleness", "nonfinite", "x"]), PLAIN))
def test_any_map_is_a_job_or_an_error_of_ours(wire) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(PSError):
        JobSpec.from_wire(wire)


@given(st.sampled_from(["parameters", "optimizer", "staleness", "nonfinite"]), PLAIN)
def test_a_job_with_one_entry_replaced_is_a_job_or_an_error_of_ours(key, value) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(PSError):
        JobSpec.from_wire({**JOB.to_wire(), key: value})


@pytest.mark.parametrize(
    "entry",
    [
        "w",
        ["w", [1]],
        ["w", [1], "float32", 0],
        [1, [1], "float32"],
        ["w", 1, "float32"],
        ["w", [1], 32],
        ["w", [-1], "float32"],
        ["w", [1.0], "float32"],
        ["w", [True], "float32"],
        ["w", [1] * 33, "float32"],
        ["w", [1 << 24, 1 << 24], "float32"],
    ],
)
def test_a_parameter_of_another_form_is_a_protocol_error(entry) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ProtocolError):
        JobSpec.from_wire({**JOB.to_wire(), "parameters": [entry]})


def test_entries_missing_or_unknown_are_a_protocol_error() -> None:
    for wire in ({}, {**JOB.to_wire(), "x": 1}, {k: v for k, v in JOB.to_wire().items() if k != "staleness"}):
        with pytest.raises(ProtocolError, match="a job has"):
            JobSpec.from_wire(wire)


def test_half_precision_is_kept_in_float32() -> None:
    assert STORAGE_DTYPES["float16"] == STORAGE_DTYPES["bfloat16"] == "float32"
    assert Parameter("w", (), "bfloat16").storage_dtype == "float32"
    assert Parameter("w", (), "float64").storage_dtype == "float64"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (((), OPTIMIZER), ConfigurationError, "at least one"),
        (((W, W), OPTIMIZER), ConfigurationError, "two parameters are named 'w'"),
        (((Parameter("n", (1,), "int32"),), OPTIMIZER), DtypeError, "int32"),
        (((Parameter("n" * (MAX_NAME_CHARS + 1), (1,), "float32"),), OPTIMIZER), ConfigurationError, "longer than"),
        (((W,), OPTIMIZER, None, "ignore"), ConfigurationError, "nonfinite"),
        (((W,), OPTIMIZER, 0), ConfigurationError, "staleness=0"),
    ],
)
def test_what_cannot_be_trained_is_refused(arguments, error, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=text):
        JobSpec(*arguments)


def test_the_order_of_parameters_is_the_jobs() -> None:
    JOB.check_same(JobSpec((B, W), OPTIMIZER), "worker 0")


@pytest.mark.parametrize(
    ("other", "what", "ours", "theirs"),
    [
        (JobSpec((W,), OPTIMIZER), "parameter 'b'", "no such parameter", "float16 ()"),
        (JobSpec((W, B, Parameter("c", (2,), "float64")), OPTIMIZER), "parameter 'c'", "float64 (2,)", "no such"),
        (JobSpec((Parameter("w", (4, 3), "float32"), B), OPTIMIZER), "parameter 'w'", "float32 (4, 3)", "(3, 4)"),
        (JobSpec((Parameter("w", (3, 4), "float64"), B), OPTIMIZER), "parameter 'w'", "float64 (3, 4)", "float32"),
        (JobSpec((W, B), {"name": "adam"}), "optimizer", "adam", "sgd"),
        (JobSpec((W, B), OPTIMIZER, None, "allow"), "nonfinite", "allow", "reject"),
    ],
)
def test_a_mismatch_names_both_sides(other, what, ours, theirs) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(JobMismatchError) as caught:
        JOB.check_same(other, "worker 0")
    assert caught.value.what == what
    assert ours in caught.value.ours
    assert theirs in caught.value.theirs
    assert caught.value.owner == "worker 0"


def test_no_job_says_what_to_call() -> None:
    assert attached(JOB) is JOB
    with pytest.raises(JobError, match=r"worker\.init"):
        attached(None)
