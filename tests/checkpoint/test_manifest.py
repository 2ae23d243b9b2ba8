"""What goes into a manifest comes out of it; what JSON would change is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.saved import job, jobs, placements
from zmqps.checkpoint.manifest import PER_SLICE, FileFact, Manifest, plain
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointCorruptError, ConfigurationError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def fact(number: int) -> FileFact:
    return FileFact(f"file-{number}", (1 << 30) + number, f"{number:032x}")


@given(st.data(), st.dictionaries(st.text(max_size=5), PLAIN, max_size=4), st.lists(PLAIN, max_size=3))
def test_a_manifest_is_read_as_it_was_written(data: st.DataObject, state: dict[str, Any], rows: list[Any]) -> None:
    spec = data.draw(jobs())
    placement = data.draw(placements(KeySpace(spec.parameters)))
    manifest = Manifest(
        job_name="my job",
        job=spec,
        placement=placement,
        version=12,
        kind=PER_SLICE,
        slots=("m", "v"),
        shards=tuple((fact(shard), fact(shard + 100)) for shard in range(placement.num_shards)),
        created_at=1.25,
        data=rows,
        state=state,
        run={"epoch": 3},
        zmqps="0.1",
    )
    again = Manifest.from_bytes("here", manifest.to_bytes())
    assert again.to_bytes() == manifest.to_bytes()
    assert (again.job, again.placement.cuts, again.shards) == (spec, placement.cuts, manifest.shards)
    assert (again.state, again.data, again.kind) == (state, rows, PER_SLICE)


@pytest.mark.parametrize(
    "value", [{1: "a"}, {"a": {2: 3}}, [b"bytes"], {"a": math.nan}, {"a": {1, 2}}, [[math.inf]], object()]
)
def test_what_json_would_not_give_back_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="state must be plain data"):
        plain("state", value)


def test_a_state_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ConfigurationError, match="plain data"):
        plain("state", value)


@pytest.mark.parametrize(
    "entry",
    [
        ["../x", 1, "0" * 32],
        ["x", -1, "0" * 32],
        ["x", 1, "0"],
        ["x", True, "0" * 32],
        ["x", 1],
        {},
        [".", 1, "0" * 32],
    ],
)
def test_a_file_outside_the_directory_is_refused(entry: Any) -> None:
    with pytest.raises(ValueError, match="a file is"):
        FileFact.from_wire(entry)


def test_a_manifest_that_somebody_has_edited_is_refused() -> None:
    spec = job(Parameter("w", (2,), "float32"))
    placement = Placement.balance(KeySpace(spec.parameters), 1)
    data = Manifest(
        job_name="j", job=spec, placement=placement, version=12, slots=(), shards=((fact(1),),), created_at=0.0
    ).to_bytes()
    with pytest.raises(CheckpointCorruptError, match="its checksum is not what was written"):
        Manifest.from_bytes("here", data.replace(b'"version": 12', b'"version": 13'))
