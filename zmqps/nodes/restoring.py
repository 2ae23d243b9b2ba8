"""What jobs begin from: the checkpoint that ``--restore`` means."""

from __future__ import annotations

from zmqps.checkpoint import Checkpoint, Manifest, good_ones, open_checkpoint, storage_of
from zmqps.checkpoint.owners import check_is_of_one
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.protocol.terms import MOST_NUMBERS, are_sets
from zmqps.nodes.checkpoints import scheme_of
from zmqps.nodes.relay import SCHEME
from zmqps.settings.saving import Saving


def restored(config: Saving) -> Checkpoint | None:
    """Return the checkpoint that jobs begin from, if they begin from one.

    Raises
    ------
    CheckpointError
        There is no usable checkpoint, or no telling which is meant.
    """
    if config.restore is None:
        return None
    storage, path = storage_of(config.restore)
    one = open_checkpoint(path, storage=storage)
    if one.path != path.rstrip("/"):
        check_is_of_one(good_ones(storage, one.path.rpartition("/")[0]))
    return one


def restored_from(path: str, one: Checkpoint) -> list[str]:
    """Return the directories that servers read which begin from a checkpoint: also of those that it builds upon.

    Parameters
    ----------
    path
        By which it was found.
    one
        The checkpoint.
    """
    found, base = [storage_of(path)[1], one.path], one.base
    while base is not None:
        found.append(base.path)
        base = base.base
    return found


def resumptions(config: Saving, one: Checkpoint | None) -> dict[str, Resumption]:
    """Return what jobs begin from, by name, of the checkpoint that they begin from."""
    if one is None or config.restore is None:
        return {}
    manifest, path = one.manifest, scheme_of(config.restore) + one.path
    return {
        manifest.job_name: Resumption(
            path=path,
            read_at=(SCHEME if config.via == "coordinator" else "") + path,
            job=manifest.job,
            version=manifest.version,
            data=manifest.data,
            state=manifest.state,
            optimizer=not config.restore_values_only,
            names=config.restore_names,
            rates=numbers_of(manifest) if not config.restore_values_only else (),
        )
    }


def numbers_of(manifest: Manifest) -> tuple[float, ...]:
    """Return the numbers that the chief had set when a checkpoint was made, as they travel; none if unusable."""
    kept = manifest.run.get("rates", [])
    usable = isinstance(kept, list) and len(kept) <= 1 + MOST_NUMBERS and are_sets(kept)
    return tuple(map(float, kept)) if usable else ()
