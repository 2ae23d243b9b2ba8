"""A chain of checkpoints that each hold the rows that have changed becomes one that holds all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zmqps.checkpoint.owners import held
from zmqps.checkpoint.publish import Save
from zmqps.checkpoint.reader import Checkpoint
from zmqps.checkpoint.writer import ShardWriter
from zmqps.core.job.keyspace import KeySpace


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
