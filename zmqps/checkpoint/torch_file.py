"""The values of a checkpoint in a file as PyTorch has them: what ``model.load_state_dict`` takes."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from zmqps.checkpoint.reader import Checkpoint
from zmqps.checkpoint.storage import LocalStorage, naming_the_disk
from zmqps.errors import ConfigurationError
from zmqps.extras import advice

#: How such files end.
ENDINGS = (".pt", ".pth")


def export_torch(checkpoint: Checkpoint, path: str, *, replace: bool = False) -> int:
    """Write a checkpoint's parameters and buffers as a ``state_dict``; return the bytes of the file.

    Names, shapes and dtypes are those of the model, half precision included; rows of sparse tables are not in it.
    ``torch.load(path, weights_only=True)`` reads it. All values are in memory at a time. Who looks at the path sees the
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
    if os.path.lexists(path) and not replace:
        raise ConfigurationError(f"{path} is there already; name another file, or remove it")
    parameters = checkpoint.manifest.job.parameters
    if not parameters:
        raise ConfigurationError(f"{checkpoint.path} has no parameters; rows of a table: --table NAME")
    state: OrderedDict[str, Any] = OrderedDict()
    for parameter in parameters:
        array = checkpoint.array(parameter.name)
        state[parameter.name] = torch.from_numpy(array).reshape(parameter.shape).to(getattr(torch, parameter.dtype))
    unfinished = f"{path}.{os.getpid()}.tmp"
    storage = LocalStorage()
    try:
        with naming_the_disk(path):
            with open(unfinished, "xb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
                nbytes = file.tell()
            os.replace(unfinished, path)
            storage.sync_directory(os.path.dirname(path) or ".")
    finally:
        with suppress(OSError):
            storage.remove(unfinished)
    return nbytes


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigurationError(
            f"a state_dict of PyTorch needs torch, which is not installed: {advice('torch')}"
        ) from error
    return torch
