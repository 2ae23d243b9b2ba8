"""Between a checkpoint and PyTorch: its values as a ``state_dict``, and an optimizer's state of the same equation.

Values and slots are the same numbers in both. Their names differ, and PyTorch stores a step count with each parameter.
Hyperparameters are not converted.
"""

from __future__ import annotations

import os
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from zmqps.checkpoint.manifest import Manifest
from zmqps.checkpoint.owners import held
from zmqps.checkpoint.publish import Save
from zmqps.checkpoint.reader import Checkpoint
from zmqps.checkpoint.storage import LocalStorage, Storage, check_replaceable, whole
from zmqps.checkpoint.writer import ShardWriter
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.errors import CheckpointMismatchError, ConfigurationError, OptimizerError
from zmqps.extras import advice
from zmqps.files import create

#: Optimizer -> its class in ``torch.optim``, whether that counts steps, and slot -> name there, in the order of the
#: slots. A slot that only some options have may be missing on both sides.
TWINS: dict[str, tuple[str, bool, dict[str, str]]] = {
    "sgd": ("SGD", False, {"u": "momentum_buffer"}),
    "adam": ("Adam", True, {"m": "exp_avg", "v": "exp_avg_sq"}),
    "adamw": ("AdamW", True, {"m": "exp_avg", "v": "exp_avg_sq"}),
    "amsgrad": ("Adam", True, {"m": "exp_avg", "v": "exp_avg_sq", "p": "max_exp_avg_sq"}),
    "adagrad": ("Adagrad", True, {"v": "sum"}),
    "rmsprop": ("RMSprop", True, {"v": "square_avg", "mean": "grad_avg", "u": "momentum_buffer"}),
    "adadelta": ("Adadelta", True, {"v": "square_avg", "a": "acc_delta"}),
}

Named = Mapping[str, Any] | Iterable[tuple[str, Any]]


def torch_state(checkpoint: Checkpoint, optimizer: Any, named_parameters: Named) -> dict[str, Any]:
    """Return the argument of ``optimizer.load_state_dict``, with the slots and step counts of a checkpoint.

    Parameters
    ----------
    checkpoint
        The checkpoint to read.
    optimizer
        A ``torch.optim.Optimizer`` of the same equation; it keeps its hyperparameters.
    named_parameters
        ``model.named_parameters()``: the names in the checkpoint.

    Raises
    ------
    OptimizerError
        PyTorch has no equivalent of the checkpoint's optimizer, or ``optimizer`` is another one.
    CheckpointMismatchError
        It has no parameter of such a name and shape.

    Examples
    --------
    >>> state = torch_state(checkpoint, optimizer, model.named_parameters())  # doctest: +SKIP
    >>> optimizer.load_state_dict(state)  # doctest: +SKIP
    """
    import torch

    counts, slots = _twin(checkpoint.manifest.job.optimizer, optimizer)
    found = optimizer.state_dict()
    names = _names(optimizer, named_parameters)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {}
    has = checkpoint.keyspace
    for number, (name, tensor) in enumerate(zip(names, parameters, strict=True)):
        if _of_table(tensor):
            continue
        if name not in has.index or has.parameters[has.index[name]].shape != tuple(tensor.shape):
            raise CheckpointMismatchError(
                path=checkpoint.path,
                what=f"it has no parameter {name!r} of shape {tuple(tensor.shape)}",
                good="",
                advice="name a checkpoint of this model",
            )
        steps = max((part[2] for part in checkpoint.steps_of(name)), default=0)
        if steps == 0:  # PyTorch's first step makes the state, and some begin in another way than from zeros
            continue
        own = {
            theirs: torch.from_numpy(checkpoint.array(name, ours)).to(tensor.device, tensor.dtype)
            for ours, theirs in slots.items()
            if ours in checkpoint.manifest.slots
        }
        state[number] = ({"step": torch.tensor(float(steps))} if counts else {}) | own
    return {**found, "state": state}


def from_torch(
    directory: str,
    optimizer: Any,
    named_parameters: Named,
    spec: Any,
    *,
    now: float,
    job: str = "default",
    storage: Storage | None = None,
) -> str:
    """Write a model and optimizer of PyTorch as a checkpoint that a cluster can restore; return its path.

    Parameters
    ----------
    directory, job, storage
        The directory of checkpoints, and the job that this one is for.
    optimizer
        A ``torch.optim.Optimizer``.
    named_parameters
        ``model.named_parameters()``.
    spec
        The optimizer of `zmqps.optim` with the same equation and hyperparameters.
    now
        Seconds since 1970.

    Raises
    ------
    OptimizerError
        PyTorch has no equivalent of ``spec``, or ``optimizer`` is another one.
    """
    wire = spec.to_wire()
    counts, slots = _twin(wire, optimizer)
    tensors = {name: tensor for name, tensor in dict(named_parameters).items() if not _of_table(tensor)}
    parameters = tuple(Parameter(n, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in tensors.items())
    owned = {id(p): optimizer.state.get(p, {}) for group in optimizer.param_groups for p in group["params"]}
    states = {name: owned.get(id(tensor), {}) for name, tensor in tensors.items()}
    names, begins = spec.slots_of(list(tensors))
    fills = dict(zip(names, begins, strict=True))
    keyspace = KeySpace(parameters)
    placement = Placement.balance(keyspace, 1)
    steps = {name: _steps(state, counts) for name, state in states.items()}
    version = max(steps.values(), default=0)
    storage = storage or LocalStorage()
    with held(storage, directory):
        save = Save.begin(storage, directory, job, version, secrets.token_hex(8), now)
        try:
            with ShardWriter(storage, save.directory, placement, 0, names) as writer:
                for slice_ in placement.slices[0]:
                    arrays = [np.empty(slice_.size, keyspace.tables[slice_.table].dtype) for _ in range(1 + len(names))]
                    for segment in slice_.segments:
                        name = parameters[segment.parameter].name
                        where = slice(segment.position, segment.position + segment.size)
                        part = slice(segment.start, segment.start + segment.size)
                        arrays[0][where] = _flat(tensors[name])[part]
                        for array, slot in zip(arrays[1:], names, strict=True):
                            there = states[name].get(slots[slot])
                            array[where] = fills[slot] if there is None else _flat(there)[part]
                    counted = [steps[parameters[segment.parameter].name] for segment in slice_.segments]
                    writer.write(slice_.index, arrays[0], arrays[1:], version=version, steps=counted)
                shards = (tuple(writer.close()),)
            manifest = Manifest(
                job_name=job,
                job=JobSpec(parameters=parameters, optimizer=wire),
                placement=placement,
                version=version,
                slots=names,
                shards=shards,
                created_at=now,
            )
            return save.commit(manifest)
        except BaseException:
            save.abandon()
            raise


def _twin(wire: Mapping[str, Any], optimizer: Any) -> tuple[bool, dict[str, str]]:
    ours, theirs = str(wire.get("name")), type(optimizer).__name__
    if ours not in TWINS:
        raise OptimizerError(f"{ours!r} has no equivalent in torch.optim; these have: {', '.join(TWINS)}")
    name, counts, slots = TWINS[ours]
    if ours == "amsgrad" and wire["hyper"].get("decoupled"):
        name = "AdamW"
    amsgrad = bool(optimizer.defaults.get("amsgrad", False))
    if theirs != name or amsgrad != (ours == "amsgrad"):
        wanted = f"{name}(amsgrad=True)" if ours == "amsgrad" else name
        raise OptimizerError(
            f"the optimizer {ours!r} is torch.optim.{wanted}, not {theirs}{'(amsgrad=True)' if amsgrad else ''}"
        )
    return counts, slots


def _names(optimizer: Any, named_parameters: Named) -> list[str]:
    names = {id(tensor): name for name, tensor in dict(named_parameters).items()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(id(p) not in names and not _of_table(p) for p in parameters):
        raise OptimizerError("the optimizer has parameters that are not among named_parameters")
    return [names.get(id(p), "") for p in parameters]


def _of_table(tensor: Any) -> bool:
    """Return whether a parameter is that of a layer whose rows are in a table, which keeps its own state."""
    return bool(getattr(tensor, "of_table", False))


def _steps(state: Mapping[str, Any], counts: bool) -> int:
    """Return how many updates a parameter has had; without a count, one if it has had any."""
    if counts:
        return int(state.get("step", 0))
    return int(state.get("momentum_buffer") is not None)


def _flat(tensor: Any) -> Array:
    import torch

    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    array: Array = tensor.detach().cpu().numpy().reshape(-1)
    return array


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
