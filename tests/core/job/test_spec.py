"""The job: its wire form, what cannot be trained, and what makes two jobs differ."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import PLAIN
from tests.tables import for_each
from zmqps.core.job.spec import (
    MAX_COUNT,
    MAX_NAME_CHARS,
    MAX_NBYTES,
    MAX_RETAIN,
    MODES,
    NONFINITE_POLICIES,
    OPTIONS,
    STORAGE_DTYPES,
    STRAGGLER_POLICIES,
    JobSpec,
    Parameter,
    attached,
)
from zmqps.core.job.tables import MAX_TABLES, TableSpec
from zmqps.errors import ConfigurationError, DtypeError, JobError, JobMismatchError, ProtocolError, PSError
from zmqps.rows.initial import Initial

OPTIMIZER = {"name": "sgd", "learning_rate": 0.1}
W, B = Parameter("w", (3, 4), "float32"), Parameter("b", (), "float16")
JOB = JobSpec(parameters=(W, B), optimizer=OPTIMIZER, mode="async")
TABLE = TableSpec(name="t", dim=4, optimizer=OPTIMIZER, initial=Initial("zeros").to_wire())


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    names = draw(st.lists(st.text(max_size=20), min_size=1, max_size=6, unique=True))
    shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
    dtypes = st.sampled_from(list(STORAGE_DTYPES))
    parameters = tuple(Parameter(name, draw(shapes), draw(dtypes)) for name in names)
    options = {
        "nonfinite": draw(st.sampled_from(NONFINITE_POLICIES)),
        "push_codec": draw(st.sampled_from(["raw", "bf16", "topk:fraction=0.1"])),
        "pull_codec": draw(st.sampled_from(["raw", "int8:block=64"])),
        "mode": draw(st.sampled_from(MODES)),
    }
    if options["mode"] == "bounded":
        options["staleness"] = draw(st.integers(1, 1 << 40))
    if options["mode"] == "sync":
        options["aggregate"] = draw(st.none() | st.integers(1, 9))
        options["on_straggler"] = draw(st.sampled_from(STRAGGLER_POLICIES))
        options["retain"] = draw(st.integers(0, MAX_RETAIN))
    return JobSpec(parameters=parameters, optimizer={"name": draw(st.text(max_size=5))}, **options)


@given(jobs())
def test_a_job_survives_the_wire(job) -> None:  # type: ignore[no-untyped-def]
    assert JobSpec.from_wire(job.to_wire()) == job


def test_a_job_from_before_there_was_another_mean_has_the_one_there_was() -> None:
    wire = JOB.to_wire()
    del wire["mean"]
    assert JobSpec.from_wire(wire) == JOB


@for_each(
    "staleness, mode",
    [(None, {"mode": "async"}), (0, {"mode": "sync"}), (3, {"mode": "bounded", "staleness": 3})],
    ids=["async", "sync", "bounded"],
)
def test_a_job_from_before_modes_had_names_has_the_mode_of_its_staleness(
    staleness: int | None, mode: dict[str, Any]
) -> None:
    wire = {**JOB.to_wire(), "staleness": staleness}
    del wire["mode"]
    assert JobSpec.from_wire(wire) == replace(JOB, **mode)


@given(st.dictionaries(st.sampled_from(["parameters", "optimizer", *OPTIONS, "x"]), PLAIN))
def test_any_map_is_a_job_or_an_error_of_ours(wire) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(PSError):
        JobSpec.from_wire(wire)


@given(st.sampled_from(["parameters", "optimizer", *OPTIONS]), PLAIN)
def test_a_job_with_one_entry_replaced_is_a_job_or_an_error_of_ours(key, value) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(PSError):
        JobSpec.from_wire({**JOB.to_wire(), key: value})


@for_each(
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


@for_each(
    "options",
    [
        {"mode": "sync", "aggregate": 1},
        {"mode": "sync", "retain": MAX_RETAIN},
        {"mode": "bounded", "staleness": 1},
        {"mode": "bounded", "staleness": MAX_COUNT},
        {"parameters": (Parameter("n" * MAX_NAME_CHARS, (1,) * 32, "float32"),)},
        {"parameters": (Parameter("w", (MAX_NBYTES // 4,), "float32"),)},
        {"parameters": tuple(Parameter(name, (MAX_NBYTES // 16,), "float64") for name in "ab")},
        {"parameters": (Parameter("empty", (0, 3), "float32"), Parameter("scalar", (), "float64"))},
    ],
)
def test_what_just_suffices_can_be_trained_and_travels(options) -> None:  # type: ignore[no-untyped-def]
    spec = replace(JOB, **options)
    assert JobSpec.from_wire(spec.to_wire()) == spec


def test_half_precision_is_kept_in_float32() -> None:
    assert STORAGE_DTYPES["float16"] == STORAGE_DTYPES["bfloat16"] == "float32"
    assert Parameter("w", (), "bfloat16").storage_dtype == "float32"
    assert Parameter("w", (), "float64").storage_dtype == "float64"


@for_each(
    "arguments, error, text",
    [
        (((), OPTIMIZER), ConfigurationError, "at least one"),
        (((W, W), OPTIMIZER), ConfigurationError, "two parameters are named 'w'"),
        (((Parameter("n", (1,), "int32"),), OPTIMIZER), DtypeError, "int32"),
        (((Parameter("n" * (MAX_NAME_CHARS + 1), (1,), "float32"),), OPTIMIZER), ConfigurationError, "longer than"),
        (((W,), OPTIMIZER, "ignore"), ConfigurationError, "nonfinite"),
    ],
)
def test_what_cannot_be_trained_is_refused(arguments, error, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=text):
        JobSpec(**dict(zip(("parameters", "optimizer", "nonfinite"), arguments, strict=False)))


@for_each(
    "options, text",
    [
        ({"mode": "sync", "aggregate": 0}, "aggregate must be a whole number at least 1 or None, not 0"),
        ({"mode": "sync", "on_straggler": "shoot"}, "on_straggler must be one of wait, continue, fail, not 'shoot'"),
        ({"mode": "sync", "retain": -1}, "retain must be a whole number from 0 to 16, not -1"),
        ({"mode": "sync", "retain": MAX_RETAIN + 1}, "retain must be a whole number from 0 to 16, not 17"),
        ({"mode": "async", "aggregate": 2}, "belong to synchronous training"),
        ({"mode": "bounded", "staleness": 3, "on_straggler": "fail"}, "belong to synchronous training"),
        ({"mode": "bounded", "staleness": 3, "retain": 1}, "belong to synchronous training"),
        ({"mode": "sync", "mean": "all"}, "mean must be one of pushed, workers, not 'all'"),
        ({"mode": "async", "mean": "workers"}, "mean='workers' belongs to mode=\"sync\""),
        ({"mode": "bounded", "staleness": 2, "mean": "workers"}, "in the other modes each push is applied alone"),
        ({"mode": "async", "deterministic": True}, "deterministic training is synchronous"),
        ({"mode": "bounded", "staleness": 2, "deterministic": True}, "deterministic training is synchronous"),
        ({"mode": "sync", "deterministic": True, "aggregate": 3}, "not the first 3 that come"),
        ({"mode": "sync", "deterministic": True, "on_straggler": "continue"}, "cannot continue without a worker"),
        ({"mode": "async", "treatment": {"name": "ignore"}}, "treatment must be one of"),
        ({"push_codec": "Zip"}, "no codec 'Zip' here; known are raw, bf16"),
        ({"push_codec": "a.b:c"}, "no codec 'a.b' here; known are raw, bf16"),
        ({"push_codec": "zip:" + 70 * "x"}, "at most 64 characters"),
        ({"push_codec": "int8:block=1"}, "block must be a whole number"),
        ({"pull_codec": "topk"}, "topk leaves values out"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigurationError, match=text):
        JobSpec(parameters=(W,), optimizer=OPTIMIZER, **options)


def test_only_deterministic_training_must_know_how_many_workers_there_will_be() -> None:
    replace(JOB, mode="sync").check_startable(None)
    deterministic = replace(JOB, mode="sync", deterministic=True)
    deterministic.check_startable(2)
    with pytest.raises(ConfigurationError, match="--workers"):
        deterministic.check_startable(None)


def test_a_job_is_synchronous_unless_it_says_otherwise() -> None:
    assert JobSpec(parameters=(W,), optimizer=OPTIMIZER).mode == "sync"


@for_each(
    "options, text",
    [
        ({"mode": "gossip"}, "mode must be one of sync, async, bounded, not 'gossip'"),
        ({"mode": "asinc"}, "mode must be one of sync, async, bounded, not 'asinc'; did you mean 'async'?"),
        ({"mode": "synchronous"}, "not 'synchronous'; pass mode=\"sync\""),
        ({"mode": "BSP"}, "not 'BSP'; pass mode=\"sync\""),
        ({"mode": "Sync"}, "not 'Sync'; pass mode=\"sync\""),
        ({"mode": "asynchronous"}, "not 'asynchronous'; pass mode=\"async\""),
        ({"mode": "asp"}, "not 'asp'; pass mode=\"async\""),
        ({"mode": "ssp"}, "not 'ssp'; pass mode=\"bounded\", staleness=n"),
        ({"mode": None}, 'not None; pass mode="async"'),
        ({"mode": 0}, 'not 0; pass mode="sync"'),
        ({"mode": 3}, 'not 3; pass mode="bounded", staleness=3'),
        ({"mode": True}, "mode must be one of sync, async, bounded, not True"),
        ({"mode": ["sync"]}, "mode must be one of sync, async, bounded, not ['sync']"),
        ({"mode": "bounded"}, 'mode="bounded" needs its bound: pass staleness=n, 1 or more'),
        ({"staleness": 0}, 'not to mode="sync": pass mode="sync", or leave staleness=0 out'),
        ({"staleness": 3}, 'not to mode="sync": pass mode="bounded", staleness=3, or leave staleness=3 out'),
        ({"staleness": "async"}, "pass mode=\"async\", or leave staleness='async' out"),
        ({"mode": "async", "staleness": -1}, 'staleness belongs to mode="bounded", not to mode="async": leave'),
        ({"mode": "bounded", "staleness": 0}, 'staleness must be a whole number at least 1, not 0; pass mode="sync"'),
        ({"mode": "bounded", "staleness": -1}, "staleness must be a whole number at least 1, not -1"),
        ({"mode": "bounded", "staleness": 1.5}, "staleness must be a whole number at least 1, not 1.5"),
        ({"mode": "bounded", "staleness": True}, "staleness must be a whole number at least 1, not True"),
        ({"mode": "bounded", "staleness": MAX_COUNT + 1}, "staleness must be a whole number at least 1, not 9"),
    ],
)
def test_what_is_wrong_with_a_mode_is_answered_by_what_to_pass(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        JobSpec(parameters=(W,), optimizer=OPTIMIZER, **options)
    assert text in str(caught.value)


@for_each("option", [*OPTIONS])
def test_an_option_of_another_type_is_a_protocol_error(option) -> None:  # type: ignore[no-untyped-def]
    for value in (1.5, "yes" if option == "deterministic" else True, [1]):
        with pytest.raises(ProtocolError, match=f"a job's {option} is"):
            JobSpec.from_wire({**JOB.to_wire(), option: value})


def test_the_order_of_parameters_is_the_jobs() -> None:
    JOB.check_same(replace(JOB, parameters=(B, W)), "worker 0")


@for_each(
    "changes, what, ours, theirs",
    [
        ({"parameters": (W,)}, "parameter 'b'", "no such parameter", "float16 ()"),
        ({"parameters": (W, B, Parameter("c", (2,), "float64"))}, "parameter 'c'", "float64 (2,)", "no such"),
        ({"parameters": (Parameter("w", (4, 3), "float32"), B)}, "parameter 'w'", "float32 (4, 3)", "(3, 4)"),
        ({"parameters": (Parameter("w", (3, 4), "float64"), B)}, "parameter 'w'", "float64 (3, 4)", "float32"),
        ({"optimizer": {"name": "adam"}}, "optimizer", "adam", "sgd"),
        ({"nonfinite": "allow"}, "nonfinite", "allow", "reject"),
        ({"mode": "sync"}, "mode", "'sync'", "'async'"),
        ({"mode": "bounded", "staleness": 2}, "mode", "'bounded'", "'async'"),
        ({"push_codec": "bf16"}, "push_codec", "'bf16'", "'raw'"),
    ],
)
def test_a_mismatch_names_both_sides(changes, what, ours, theirs) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(JobMismatchError) as caught:
        JOB.check_same(replace(JOB, **changes), "worker 0")
    assert caught.value.what == what
    assert ours in caught.value.ours
    assert theirs in caught.value.theirs
    assert caught.value.owner == "worker 0"


def test_no_job_says_what_to_call() -> None:
    assert attached(JOB) is JOB
    with pytest.raises(JobError, match=r"worker\.init"):
        attached(None)


# --- sizes --------------------------------------------------------------------------------------


def test_the_values_of_all_parameters_together_are_bounded_and_the_error_names_the_largest() -> None:
    half = MAX_NBYTES // 8
    parameters = (Parameter("w", (half, 1), "float32"), Parameter("b", (half + 1,), "bfloat16"))
    largest = r"the largest, 'b' of shape \[8796093022209\], takes 35,184,372,088,836"
    with pytest.raises(ConfigurationError, match=largest):
        JobSpec(parameters=parameters, optimizer=OPTIMIZER)


def test_no_dimension_is_beyond_what_an_array_can_have_also_beside_one_of_nothing() -> None:
    wire = {**JOB.to_wire(), "parameters": [["w", [0, 1 << 63], "float32"]]}
    with pytest.raises(ProtocolError, match="no usable shape"):
        JobSpec.from_wire(wire)


def test_tables_beside_many_parameters_take_no_longer_for_each_pair() -> None:
    wire = {**JOB.to_wire(), "parameters": [[f"p{i}", [], "float32"] for i in range(50_000)]}
    tables = [replace(TABLE, name=f"t{i}").to_wire() for i in range(MAX_TABLES)]

    def took(wire: dict[str, object]) -> float:
        began = thread_time()
        JobSpec.from_wire(wire)
        return thread_time() - began

    assert took({**wire, "tables": tables}) < 4 * took(wire) + 0.2, "each pair: 1 s"


def test_a_table_has_the_name_of_no_parameter() -> None:
    for name in ("w", "t"):
        with pytest.raises(ConfigurationError, match=f"named '{name}'"):
            replace(JOB, tables=(TABLE, replace(TABLE, name=name)))
