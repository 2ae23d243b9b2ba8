"""The arrays of a checkpoint anywhere, without a cluster."""

from __future__ import annotations

import os

from zmqps import checks
from zmqps.checkpoint.find import open_checkpoint, with_advice
from zmqps.checkpoint.publish import entry_of
from zmqps.core.protocol.arrays import Array
from zmqps.errors import CheckpointCorruptError, CheckpointNotFoundError

#: So often the latest is read where it is removed faster than that.
_ATTEMPTS = 5


def load(path: str | os.PathLike[str], *, job: str | None = None, optimizer: bool = False) -> dict[str, Array]:
    """Return the values of a checkpoint.

    Parameters
    ----------
    path
        Of a checkpoint, or of a directory with checkpoints, of which the latest good one is read.
    job
        Whose, where the directory has checkpoints of several.
    optimizer
        Also return the optimizer's slots, named ``optimizer.<slot>.<name>``; those of tables stay where they are.

    Returns
    -------
    dict of str to ndarray
        By name, in the job's order, each a new array. Half-precision parameters come in float32, as the servers keep
        them. Of a sparse table there are the ids of its rows as ``<table>.ids``, int64 ``(n,)``, and their values as
        ``<table>.values``, float32 ``(n, dim)``, in no order.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or what was read is not what was written; says which older one looks whole.

    Examples
    --------
    >>> arrays = zmqps.load("/data/run-7")  # doctest: +SKIP
    """
    checks.flag("optimizer", optimizer)
    for attempt in range(_ATTEMPTS):
        checkpoint = open_checkpoint(os.fspath(path), job)
        try:
            return checkpoint.arrays(optimizer=optimizer)
        except CheckpointNotFoundError:  # it was removed meanwhile
            if attempt == _ATTEMPTS - 1 or entry_of(os.fspath(path)) is not None:
                raise
        except CheckpointCorruptError as error:
            raise with_advice(checkpoint.storage, checkpoint.path, error) from error.__cause__
    raise AssertionError("the last attempt returns or raises")
