"""The tensors of a model, by name; the model as the workers of a job have it, read-only; and buffers, which they share.

Buffers are statistics of BatchNorm, counters, observers of quantization.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch

from zmqps.client.futures import begins
from zmqps.errors import ConfigurationError
from zmqps.torch.rows import is_rows
from zmqps.worker import Worker, connect

#: A decorator: what talks to servers is not part of a compiled graph.
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


#: What is done with buffers: workers average them, all take those of the chief, or each keeps its own.
BUFFERS = ("average", "chief", "own")
#: Larger ones (masks, tables of positions) are written to by scripts alone.
COMPARED_NBYTES = 1 << 16


class Buffers:
    """The buffers of a model, and copies of them that travel.

    The live ones are never handed out: memory that numpy has seen cannot be resized any more, and observers resize
    their buffers when they see the first tensor.

    Parameters
    ----------
    model
        That has them.
    by
        One of `BUFFERS`.
    come_back
        Whether the values of a step have those of buffers as well: in a synchronous step all workers have the same.

    Attributes
    ----------
    copies
        Those that belong to the job, by name, with the shapes that they had at first.
    """

    def __init__(self, model: torch.nn.Module, by: str, *, come_back: bool) -> None:
        self._model = model
        self._by = by
        self._come_back = come_back and by != "own"
        self.copies = {name: tensor.clone() for name, tensor in buffers_of(model).items()}
        self._own: set[str] = set()  # those whose shape has changed: the job of a single worker continues without them
        self._seen = self._marks()

    def live(self) -> dict[str, torch.Tensor]:
        """Return the buffers as they are now: a module may have put others in their place."""
        now = dict(self._model.named_buffers())
        return {name: now[name] for name in self.copies if name in now and name not in self._own}

    def returning(self) -> dict[str, torch.Tensor]:
        """Return the copies that come back with the values of a step."""
        return {name: self.copies[name] for name in self.live()} if self._come_back else {}

    def push(self, worker: Worker, timeout: float | None) -> list[Future[None]]:
        """Bring the buffers that the forward pass has changed.

        Raises
        ------
        ConfigurationError
            The shape of one has changed, and there are other workers.
        """
        sent: list[Future[None]] = []
        if self._by == "own" or not self.copies:
            return sent
        changed = self._changed(worker)
        if self._by == "average":
            means = {name: tensor for name, tensor in changed.items() if tensor.is_floating_point()}
            if means:
                sent.append(begins(Worker.average)(worker, means, timeout=timeout))
            changed = {name: tensor for name, tensor in changed.items() if name not in means}
        if changed and worker.is_chief:
            sent.append(begins(Worker.set)(worker, changed, timeout=timeout))
        return sent

    def _changed(self, worker: Worker) -> dict[str, torch.Tensor]:
        """Return copies of the buffers of modules that have changed one."""
        live = self.live()
        modules = {name.rpartition(".")[0] for name, tensor in live.items() if self._differs(name, tensor)}
        found: dict[str, torch.Tensor] = {}
        for name, tensor in live.items():
            if name.rpartition(".")[0] in modules:
                if tensor.shape != self.copies[name].shape:
                    self._leave_out(name, tensor, worker)
                else:
                    found[name] = tensor.detach().clone()
        return found

    def _differs(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether a buffer was written to since it came: kernels of PyTorch do so without counting it as a version."""
        if _mark(tensor) != self._seen.get(name):
            return True
        return tensor.nbytes <= COMPARED_NBYTES and not torch.equal(tensor, self.copies[name])

    def _leave_out(self, name: str, tensor: torch.Tensor, worker: Worker) -> None:
        if worker.num_workers > 1:
            raise ConfigurationError(
                f"the buffer {name!r} had the shape {tuple(self.copies[name].shape)} when the optimizer was made, and "
                f"has {tuple(tensor.shape)} now, so workers cannot share it: run one batch through the model before "
                "zmqps.torch.Optimizer is made, or pass buffers='own'"
            )
        self._own.add(name)

    def land(self) -> None:
        """Write what has come to the live buffers."""
        with torch.no_grad():
            for name, tensor in self.live().items():
                if not torch.equal(tensor, self.copies[name]):
                    tensor.copy_(self.copies[name])
        self._seen = self._marks()

    def end_step(self) -> None:
        """The values of a step have come, and with them those of buffers, where they come back."""
        if self._come_back:
            self.land()
            return
        for name, tensor in self.live().items() if self._by != "own" else ():
            if self._differs(name, tensor):
                self.copies[name].copy_(tensor.detach())
        self._seen = self._marks()

    def _marks(self) -> dict[str, tuple[int, int]]:
        """Return by name what changes when a buffer is written to, or another one takes its place."""
        return {name: _mark(tensor) for name, tensor in self.live().items()}


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version
