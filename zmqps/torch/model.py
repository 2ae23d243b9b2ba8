"""The tensors of a model, by name, and the model as the workers of a job have it, read-only."""

from __future__ import annotations

from typing import Any

import torch

from zmqps.errors import ConfigurationError
from zmqps.torch.rows import is_rows
from zmqps.worker import connect

#: A decorator: what talks to servers is no part of a compiled graph.
outside_graphs = torch.compiler.disable(reason="zmqps.torch talks to servers here")
#: Values that `sample_of` looks at.
NUM_SAMPLED = 64


def parameters_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's parameters as tensors that may be written to; tied ones once, by their first name.

    Without those of embeddings whose rows are in a table.
    """
    return {name: parameter.detach() for name, parameter in model.named_parameters() if not is_rows(parameter)}


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's buffers that belong to its state: not those it can make again, nor complex ones."""
    state = model.state_dict(keep_vars=True).keys()
    return {n: b.detach() for n, b in model.named_buffers() if n in state and not b.is_complex()}


def sample_of(tensor: torch.Tensor) -> bytes:
    """Return some of a tensor's values, spread over it: a write to all of them by ``.data`` leaves no other trace.

    Of one that is not in this process's memory as plain numbers, nothing.
    """
    if not is_plain(tensor):
        return b""
    flat = tensor.detach().numpy().reshape(-1)
    return bytes(flat[:: flat.size // NUM_SAMPLED + 1].tobytes())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether values can be put right into a tensor's memory."""
    floating = tensor.dtype in (torch.float32, torch.float64)
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and floating and tensor.is_contiguous()


def evaluate(address: str | None, model: torch.nn.Module, *, timeout: float | None = None, **options: Any) -> int:
    """Put a job's parameters and buffers into a model, as an observer; return their version.

    Parameters
    ----------
    address : str, optional
        The coordinator's; None: as `zmqps.connect` finds it.
    model : torch.nn.Module
        Of the class that is trained. Its tensors are written in place.
    timeout : float, optional
        Seconds to wait for the values; by default as `zmqps.connect` says, at least 60.
    **options
        Of `zmqps.connect`: ``job``, ``keys``, ``token``, …

    Raises
    ------
    ConfigurationError
        The job lacks something that the model has.
    PSError
        As `zmqps.connect` and `zmqps.Worker.pull`.
    """
    with connect(address, observer=True, **options) as observer:
        observer.pull([], timeout=timeout)  # which tells what the job has
        known = {parameter.name for parameter in observer.parameters}
        tensors = {**parameters_of(model), **buffers_of(model)}
        if missing := [name for name in tensors if name not in known]:
            raise ConfigurationError(f"the job has no {missing[0]!r}, which is in this model: build the one it trains")
        return observer.pull(out=tensors, timeout=timeout).version
