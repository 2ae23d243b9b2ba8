"""Jobs of any shape, and checkpoints of them on any storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from zmqps.checkpoint.manifest import Manifest, Owner
from zmqps.checkpoint.publish import Save
from zmqps.checkpoint.storage import Storage
from zmqps.checkpoint.writer import ShardWriter
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array

NOW = 1_700_000_000.0


def owner(cluster: int, run: int | None = None, host: str = "here") -> Owner:
    """Return the owner of what a cluster saves."""
    ids = [f"{number:08x}" * 4 for number in (cluster, cluster if run is None else run)]
    return Owner(cluster=ids[0], run=ids[1], host=host, pid=1000 + cluster, since=NOW)


OWNER = owner(1)
SHAPES = st.lists(st.integers(0, 7) | st.integers(1, 5), max_size=4).map(tuple)
DTYPES = st.sampled_from(["float32", "float64", "float16", "bfloat16"])


@st.composite
def jobs(draw: st.DrawFn, most: int = 6) -> JobSpec:
    """Return a job of a few parameters of any shape, some of them without elements."""
    found = draw(st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=most))
    return job(*(Parameter(f"p{number}", shape, dtype) for number, (shape, dtype) in enumerate(found)))


@st.composite
def placements(draw: st.DrawFn, keyspace: KeySpace) -> Placement:
    """Return any placement of a key space, cut anywhere."""
    shards = draw(st.integers(1, 4))
    cuts = []
    for table in keyspace.tables:
        inner = draw(st.lists(st.integers(0, table.size), min_size=shards - 1, max_size=shards - 1))
        cuts.append((0, *sorted(inner), table.size))
    return Placement(keyspace, tuple(cuts), draw(st.sampled_from([8, 24, 64, 4096])))


def job(*parameters: Parameter, mode: str = "async", **options: Any) -> JobSpec:
    optimizer = {"name": "adam", "hyper": {}, "learning_rate": 0.1, "clip_value": None, "groups": []}
    return JobSpec(parameters=parameters, optimizer=options.pop("optimizer", optimizer), mode=mode, **options)


@dataclass
class Model:
    """What a checkpoint is made of, as flat tables."""

    spec: JobSpec
    tables: list[list[Array]]  # of each table the values, then the slots
    slots: tuple[str, ...] = ("m", "v")

    @classmethod
    def random(cls, spec: JobSpec, slots: tuple[str, ...] = ("m", "v"), seed: int = 0) -> Model:
        rng = np.random.default_rng(seed)
        tables = KeySpace(spec.parameters).tables
        return cls(
            spec, [[rng.standard_normal(t.size).astype(t.dtype) for _ in range(1 + len(slots))] for t in tables], slots
        )

    def array(self, name: str, slot: str | None = None) -> Array:
        keyspace = KeySpace(self.spec.parameters)
        index = keyspace.index[name]
        for table, arrays in zip(keyspace.tables, self.tables, strict=True):
            if index in table.parameters:
                where = table.parameters.index(index)
                flat = arrays[0 if slot is None else 1 + self.slots.index(slot)]
                return flat[table.offsets[where] : table.offsets[where + 1]].reshape(keyspace.parameters[index].shape)
        raise KeyError(name)


def save(
    storage: Storage,
    directory: str,
    model: Model,
    placement: Placement,
    *,
    job_name: str = "default",
    version: int = 7,
    order: Sequence[int] | None = None,
    owner: str = "me",
    now: float = NOW,
    steps: int | None = None,
    owned_by: Owner | None = None,
    **more: Any,
) -> str:
    """Write a checkpoint as a cluster would, and return its path."""
    one = Save.begin(storage, directory, job_name, version, owner, now)
    shards = []
    for index, slices in enumerate(placement.slices):
        writer = ShardWriter(storage, one.directory, placement, index, model.slots)
        for number in sorted(range(len(slices)), key=lambda n: order[n % len(order)] if order else n):
            slice_ = slices[number]
            value, *slots = (array[slice_.start : slice_.stop] for array in model.tables[slice_.table])
            counts = [segment.parameter + 1 if steps is None else steps for segment in slice_.segments]
            writer.write(number, value, slots, version=version + number, steps=counts)
        shards.append(tuple(writer.close({"shard": index, "ledger": [[1, 2], "x"]})))
    manifest = Manifest(
        job_name=job_name,
        job=model.spec,
        placement=placement,
        version=version,
        slots=model.slots,
        shards=tuple(shards),
        created_at=now,
        owner=owned_by,
        **more,
    )
    return one.commit(manifest)
