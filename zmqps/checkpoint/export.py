"""What is made of a checkpoint: its model or one of its tables as a plain file, or a chain of checkpoints as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from zmqps.checkpoint.layout import ShardLayout
from zmqps.checkpoint.manifest import installed_version
from zmqps.checkpoint.owners import held
from zmqps.checkpoint.publish import Save
from zmqps.checkpoint.reader import Checkpoint
from zmqps.checkpoint.rows import VALUES, TableFacts
from zmqps.checkpoint.storage import LocalStorage, check_replaceable, whole
from zmqps.checkpoint.table_file import TableFile
from zmqps.checkpoint.writer import ShardWriter
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.errors import ConfigurationError, listed


def export(checkpoint: Checkpoint, path: str, *, optimizer: bool = False, replace: bool = False) -> int:
    """Write a checkpoint's values into one file that any reader of safetensors reads; return its bytes.

    A few slices are in memory at a time, and the ids of sparse tables. A reader sees the whole file or none.
    The rows of a table are ``<table>.ids``, int64 ``(n,)``, and ``<table>.values``, float32 ``(n, dim)``.

    Parameters
    ----------
    checkpoint
        What to read; all of it is checked.
    path
        Of the new file.
    optimizer
        Also write the slots, as ``optimizer.<slot>.<name>``, but for those of tables.
    replace
        Whether there may be such a file already.

    Raises
    ------
    ConfigurationError
        There is such a file already.
    CheckpointCorruptError
        What was read is not what was written.
    CheckpointStorageError
        The disk is full or read-only, or fails.
    """
    check_replaceable(path, replace)
    slots = checkpoint.manifest.slots if optimizer else ()
    placement = Placement.balance(checkpoint.keyspace, 1)
    tables = {spec.name: checkpoint.table(spec.name, VALUES) for spec in checkpoint.manifest.job.tables}
    ids = {name: files.ids() for name, files in tables.items()}
    layout = ShardLayout(
        placement, 0, slots, {name: (ids[name].size, files.spec.dim) for name, files in tables.items()}
    )
    [plan] = layout.files
    restorer = checkpoint.onto(checkpoint.keyspace.parameters, slots)
    with whole(path) as unfinished:
        file = LocalStorage().create(unfinished)
        file.write_at(plan.header, 0)
        for slice_ in placement.slices[0]:
            found = restorer.read(slice_, checkpoint.keyspace.tables[slice_.table].dtype)
            for number, array in enumerate((found.value, *found.slots)):
                [extent] = layout.extents(number, slice_.table, slice_.start, slice_.stop)
                file.write_at(array.data, extent.offset)
        for name, files in tables.items():
            ids_at, values_at = layout.rows_at[name]
            file.write_at(ids[name].data, ids_at)
            for shard in files.shards:
                for kept in files.read(shard):
                    file.write_at(np.ascontiguousarray(kept.values).data, values_at)
                    values_at += kept.values.nbytes
        file.sync()
        file.close()
    return plan.nbytes


def export_table(
    checkpoint: Checkpoint, path: str, table: str | None = None, *, format: str | None = None, replace: bool = False
) -> int:
    """Write the rows of a sparse table, each once, into one file as `zmqps.Table.export` does; return their number.

    Parameters
    ----------
    checkpoint
        What to read; all of the table is checked.
    path
        Of the new file.
    table
        Which; None: the only one.
    format
        As the name ends, or one of ``parquet``, ``arrow`` and ``safetensors``.
    replace
        Whether there may be such a file already.

    Raises
    ------
    UnknownParameterError, ConfigurationError
        There is no such table, or several; there is such a file already; or pyarrow is not installed.
    CheckpointCorruptError, CheckpointStorageError
        As `export`.
    """
    manifest = checkpoint.manifest
    if table is None:
        tables = [spec.name for spec in manifest.job.tables]
        if len(tables) != 1:
            has = f"has {listed(tables, 5)}: say which one with --table" if tables else "has none"
            raise ConfigurationError(f"a file of a table has one, and {checkpoint.path} {has}")
        [table] = tables
    files = checkpoint.table(table, VALUES)
    with TableFile(path, format=format, replace=replace) as file:
        file.begin(TableFacts(table, files.spec.dim, manifest.job_name, checkpoint.version, installed_version()))
        for shard in files.shards:
            for kept in files.read(shard):
                file.write(kept.ids, kept.values)
        file.publish()
    return file.rows


def whole_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is kept of a shard, of whose tables nothing is in other checkpoints."""
    if "tables" not in state:
        return state
    return {**state, "tables": {name: {**table, "whole": True} for name, table in state["tables"].items()}}


def compact(checkpoint: Checkpoint, directory: str, owner: str, now: float) -> str:
    """Rewrite a checkpoint so that it builds upon no other; return its path.

    It becomes the latest of its job, of the same version and with the same state. What it was made of may be pruned
    afterwards. A slice is in memory at a time.

    Parameters
    ----------
    checkpoint
        The end of the chain; all of it is checked.
    directory
        Where the checkpoints of all jobs are kept.
    owner, now
        As for `Save.begin`; the owner must not be one that saves meanwhile.

    Raises
    ------
    CheckpointCorruptError
        What was read is not what was written.
    CheckpointStorageError
        The disk is full or read-only, or fails, or a cluster saves there; nothing is left of what was begun.
    """
    manifest = checkpoint.manifest
    placement, slots = manifest.placement, manifest.slots
    keyspace: KeySpace = placement.keyspace
    restorer = checkpoint.onto(keyspace.parameters, slots)
    with held(checkpoint.storage, directory):
        save = Save.begin(checkpoint.storage, directory, manifest.job_name, manifest.version, owner, now)
        try:
            shards = []
            for index, (slices, state) in enumerate(zip(placement.slices, checkpoint.shards, strict=True)):
                with ShardWriter(
                    checkpoint.storage, save.directory, placement, index, slots, table_slots=state.slots
                ) as writer:
                    for slice_, version, steps in zip(slices, state.versions, state.steps, strict=True):
                        found = restorer.read(slice_, keyspace.tables[slice_.table].dtype)
                        writer.write(slice_.index, found.value, found.slots, version=version, steps=steps)
                    for name in state.tables:
                        for kept in checkpoint.table(name).read(index):
                            writer.write_rows(name, kept, kept.ids[:0])
                    shards.append(tuple(writer.close(whole_state(state.state))))
            return save.commit(replace(manifest, shards=tuple(shards), base=None, created_at=now, owner=None))
        except BaseException:
            save.abandon()
            raise
