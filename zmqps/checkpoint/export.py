"""Export of a checkpoint's model, or of one of its tables, as one plain file."""

from __future__ import annotations

import numpy as np

from zmqps.checkpoint.layout import ShardLayout
from zmqps.checkpoint.manifest import installed_version
from zmqps.checkpoint.reader import Checkpoint
from zmqps.checkpoint.storage import LocalStorage, check_replaceable, whole
from zmqps.checkpoint.tables.rows import VALUES
from zmqps.checkpoint.tables.table_facts import TableFacts
from zmqps.checkpoint.tables.table_file import TableFile
from zmqps.core.job.keyspace import Placement
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
