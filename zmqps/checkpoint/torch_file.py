"""The values of a checkpoint in a file as PyTorch has them: what ``model.load_state_dict`` takes."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

from zmqps.checkpoint.reader import Checkpoint
from zmqps.checkpoint.storage import check_replaceable, whole
from zmqps.errors import ConfigurationError
from zmqps.extras import advice
from zmqps.files import create

#: How such files end.
ENDINGS = (".pt", ".pth")


def export_torch(checkpoint: Checkpoint, path: str, *, replace: bool = False) -> int:
    """Write a checkpoint's parameters and buffers as a ``state_dict``; return the bytes of the file.

    Names, shapes and dtypes are those of the model, half precision included; rows of sparse tables are not in it.
    ``torch.load(path, weights_only=True)`` reads it. All values are in memory at a time. A reader of the path sees the
    whole file or none.

    Parameters
    ----------
    checkpoint
        What to read; all of it is checked.
    path
        Of the new file.
    replace
        Whether there may be such a file already.

    Raises
    ------
    ConfigurationError
        PyTorch is not installed; there is such a file already; or the job has tables alone.
    CheckpointCorruptError, CheckpointStorageError
        As `zmqps.checkpoint.export`.
    """
    torch = _torch()
    check_replaceable(path, replace)
    parameters = checkpoint.manifest.job.parameters
    if not parameters:
        raise ConfigurationError(f"{checkpoint.path} has no parameters; rows of a table: --table NAME")
    state: OrderedDict[str, Any] = OrderedDict()
    for parameter in parameters:
        array = checkpoint.array(parameter.name)
        state[parameter.name] = torch.from_numpy(array).reshape(parameter.shape).to(getattr(torch, parameter.dtype))
    with whole(path) as unfinished, open(create(unfinished), "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
        nbytes = file.tell()
    return nbytes


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigurationError(
            f"a state_dict of PyTorch needs torch, which is not installed: {advice('torch')}"
        ) from error
    return torch
