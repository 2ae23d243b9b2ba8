"""The rows of sparse tables out of a checkpoint: into the tables of a shard, whatever servers wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np

from zmqps.checkpoint.rows import VALUES, RowFiles, Slots
from zmqps.errors import CheckpointMismatchError, UnknownParameterError
from zmqps.optim.rows import kernel_of_table
from zmqps.rows.hashing import NUM_BUCKETS, buckets_of
from zmqps.rows.kept import Kept, rebased

if TYPE_CHECKING:
    from zmqps.checkpoint import Checkpoint
    from zmqps.core.job.tables import TableSpec
    from zmqps.core.protocol.arrays import Array
    from zmqps.core.server.tables.rows import Rows
    from zmqps.core.server.tables.table import RowTable

#: Rows that a table takes in at a time: its server answers no request meanwhile, and asks for memory in between.
TAKEN_ROWS = 1 << 16


def slots_of_table(spec: TableSpec) -> Slots:
    """Return the names of what a table's optimizer keeps."""
    counted = cast(Literal["rows", "table"], spec.step_counts)
    kernel = kernel_of_table(spec.optimizer, spec.name, spec.dim, "numpy", counted)
    return Slots(tuple(kernel.rule.slots), tuple(kernel.rule.row_slots), kernel.counts)


def read_tables(checkpoint: Checkpoint, rows: Rows, source: Mapping[str, Any], *, synchronous: bool) -> None:
    """Fill the tables of a shard that was just built with what a checkpoint has for them.

    Parameters
    ----------
    checkpoint
        Of any number of shards.
    rows
        The tables.
    source
        `Assign.restore`: its version, whether slots are restored as well, and names that differ.
    synchronous
        Whether a table's version is the number of its steps, which is that of the job.

    Raises
    ------
    CheckpointError
        It is damaged, or of other tables or optimizers.
    TableFullError
        A table has no room for all its rows.
    """
    for table in rows.tables:
        slots = slots_of_table(table.spec) if source["optimizer"] else VALUES
        files = _found(checkpoint, table.spec, source["names"].get(table.spec.name, table.spec.name), slots)
        renamed = files.spec.name != table.spec.name  # by the name it is known which bucket an id is in
        shards = files.shards_of(0, NUM_BUCKETS) if renamed else files.shards_of(table.slice.start, table.slice.stop)
        states = [files.state(shard) for shard in shards]
        table.steps = max((state.steps for state in states), default=0)
        table.version = source["version"] if synchronous else max((state.version for state in states), default=0)
        for shard, state in zip(shards, states, strict=True):
            for kept in files.read(shard):
                mine = kept
                if renamed or not files.lies_within(shard, table.slice.start, table.slice.stop):
                    mine = _own(kept, table)
                mine = mine._replace(stamps=rebased(mine.stamps, table.steps, state.steps))
                for start in range(0, mine.ids.size, TAKEN_ROWS):
                    part = np.arange(start, min(start + TAKEN_ROWS, mine.ids.size))
                    table.restore(mine.only(part), slots=bool(source["optimizer"]))


def _own(kept: Kept, table: RowTable) -> Kept:
    """Return those rows that are in the buckets of a table."""
    buckets: Array = buckets_of(kept.ids, table.spec.bucket_seed)
    return kept.only((buckets >= table.slice.start) & (buckets < table.slice.stop))


def _found(checkpoint: Checkpoint, spec: TableSpec, name: str, slots: Slots) -> RowFiles:
    """Return where the rows of a table are."""

    def refuse(what: str, advice: str) -> NoReturn:
        raise CheckpointMismatchError(path=checkpoint.path, what=what, good="", advice=advice)

    try:
        files = checkpoint.table(name, slots)
    except UnknownParameterError:
        refuse(f"it has no sparse table {name!r}", "map the names, or name a checkpoint of this model")
    if files.spec.dim != spec.dim:
        refuse(
            f"rows of its table {name!r} have {files.spec.dim} elements, and the job's {spec.dim}",
            "name a checkpoint of this model",
        )
    missing = [slot for slot in (*slots.long, *slots.short) if slot not in (*files.slots.long, *files.slots.short)]
    if missing or (slots.counts and not files.slots.counts):
        lacks = ", ".join(missing) or "counts of updates"
        refuse(
            f"the optimizer of its table {name!r} has no {lacks}",
            "restore with the same optimizer, or only the values with restore_values_only=True",
        )
    return files
