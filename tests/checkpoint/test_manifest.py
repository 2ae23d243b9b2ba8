"""What goes into a manifest comes out of it; what JSON would change is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.checkpoint.saved import OWNER, job, jobs, placements
from tests.tables import for_each
from zmqps.checkpoint.manifest import PER_SLICE, FileFact, Manifest, Owner, plain
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
        owner=data.draw(st.none() | st.just(OWNER)),
    )
    again = Manifest.from_bytes("here", manifest.to_bytes())
    assert again.to_bytes() == manifest.to_bytes()
    assert (again.job, again.placement.cuts, again.shards) == (spec, placement.cuts, manifest.shards)
    assert (again.state, again.data, again.kind) == (state, rows, PER_SLICE)
    assert again.owner == manifest.owner


FACTS = {"cluster": "0" * 32, "run": "f" * 32, "host": "here", "pid": 7, "since": 1.5}


def test_an_owner_is_read_as_it_was_written_and_says_who_it_is() -> None:
    owner = Owner.from_plain(FACTS)
    assert owner.to_plain() == FACTS
    assert str(owner) == "the cluster 00000000 (host here, pid 7, since 1970-01-01 00:00:01 UTC)"
    late = Owner.from_plain(FACTS | {"since": 1e300, "host": "h\x1b[2J"})
    assert str(late).startswith("the cluster 00000000 (host h")
    assert "\x1b" not in str(late)


@given(
    st.fixed_dictionaries(
        {name: PLAIN | st.just(value) | st.just(math.nan) for name, value in FACTS.items()},
        optional={"more": PLAIN},
    )
    | PLAIN
)
@example(FACTS | {"cluster": "0" * 31})
@example(FACTS | {"run": "G" * 32})
@example(FACTS | {"pid": True})
@example(FACTS | {"pid": -1})
@example(FACTS | {"pid": 1 << 63})
@example(FACTS | {"since": math.inf})
@example(FACTS | {"since": 10**400})
@example(FACTS | {"host": "h" * 256})
def test_an_owner_is_usable_or_refused(plain: Any) -> None:
    try:
        owner = Owner.from_plain(plain)
    except ValueError:
        return
    assert Owner.from_plain(owner.to_plain()) == owner
    assert len(str(owner)) < 3000


@for_each("value", [{1: "a"}, {"a": {2: 3}}, [b"bytes"], {"a": math.nan}, {"a": {1, 2}}, [[math.inf]], object()])
def test_what_json_would_not_give_back_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="state must be plain data"):
        plain("state", value)


def test_a_state_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ConfigurationError, match="plain data"):
        plain("state", value)


@for_each(
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


def test_a_manifest_without_a_usable_owner_is_refused() -> None:
    spec = job(Parameter("w", (2,), "float32"))
    placement = Placement.balance(KeySpace(spec.parameters), 1)
    owner = replace(OWNER, cluster="nobody")
    data = Manifest(
        job_name="j", job=spec, placement=placement, version=1, slots=(), shards=((fact(1),),), created_at=0.0,
        owner=owner,
    ).to_bytes()  # fmt: skip
    with pytest.raises(CheckpointCorruptError, match="it has no usable owner"):
        Manifest.from_bytes("here", data)


def test_a_manifest_that_somebody_has_edited_is_refused() -> None:
    spec = job(Parameter("w", (2,), "float32"))
    placement = Placement.balance(KeySpace(spec.parameters), 1)
    data = Manifest(
        job_name="j", job=spec, placement=placement, version=12, slots=(), shards=((fact(1),),), created_at=0.0
    ).to_bytes()
    with pytest.raises(CheckpointCorruptError, match="its checksum is not what was written"):
        Manifest.from_bytes("here", data.replace(b'"version": 12', b'"version": 13'))
