"""A job's present model, read-only."""

from __future__ import annotations

from typing import Any

import torch

from zmqps.errors import ConfigurationError
from zmqps.torch.model import buffers_of, parameters_of
from zmqps.worker import connect


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
