"""Notices what a script changes by itself: parameters it writes to, and gradients before their mean is known."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from zmqps.torch.model import sample_of

log = logging.getLogger("zmqps")

#: Of a large parameter this many bytes are compared, others in each step: a write by ``.data`` leaves no other trace.
SAMPLE_NBYTES = 1024
#: At most this many parameters are compared in a step, in turn.
MOST_SAMPLED = 1024

#: A parameter as it is: its memory, PyTorch's count of writes, which of its bytes are compared, and these.
_Mark = tuple[int, int, int, bytes]


class Watch:
    """What parameters were when their values came from the servers.

    A write in place changes PyTorch's version of a tensor, and one of ``.data =`` its place. One through ``.data`` in
    place changes only values, which are compared in this process's memory: parameters of up to
    `SAMPLE_NBYTES` as a whole, others in part.

    Parameters
    ----------
    trained
        The parameters, by name.
    """

    def __init__(self, trained: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self._trained = dict(trained)
        self._number = {name: number for number, name in enumerate(self._trained)}
        self._bytes: dict[str, tuple[int, np.ndarray[Any, Any] | None]] = {}  # with the address that they are at
        self._marks: dict[str, _Mark] = {}
        self._turn = 0
        self._warned = False

    def note(self, name: str) -> None:
        """The values of a parameter have come."""
        if (parameter := self._trained.get(name)) is not None:
            self._marks[name] = self._mark(name, parameter, self._turn)

    def note_all(self) -> None:
        """The values of all parameters have come."""
        for name in self._trained:
            self.note(name)

    def check(self) -> None:
        """Warn where a script has written to a parameter, once for steps in a row; then another part is compared."""
        marks = self._marks.items()
        written = next((n for n, mark in marks if self._mark(n, self._trained[n], mark[2]) != mark), None)
        if written is not None and not self._warned:
            log.warning(
                "%r was written to since the last step, and this step overwrites it with the servers' values: to give "
                "the job what you write, call optimizer.set_values() on every worker",
                written,
            )
        self._warned = written is not None
        self._turn += 1

    def _mark(self, name: str, parameter: torch.nn.Parameter, turn: int) -> _Mark:
        address = parameter.data_ptr()
        return address, parameter._version, turn, self._sample(name, parameter, address, turn)

    def _sample(self, name: str, parameter: torch.nn.Parameter, address: int, turn: int) -> bytes:
        rounds = -(-len(self._trained) // MOST_SAMPLED)
        if rounds > 1 and (self._number[name] + turn) % rounds:
            return b""
        known = self._bytes.get(name)
        if known is None or known[0] != address:
            known = self._bytes[name] = address, _bytes_of(parameter)
        if (found := known[1]) is None:
            return b""
        if found.size <= SAMPLE_NBYTES:
            return found.tobytes()
        start = turn * SAMPLE_NBYTES % found.size
        return found[start : start + SAMPLE_NBYTES].tobytes()


def _bytes_of(parameter: torch.nn.Parameter) -> np.ndarray[Any, Any] | None:
    """Return a parameter's bytes in the order of memory; None: not here, or not contiguous."""
    tensor = parameter.detach()
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.numel():
        return None
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    tensor = tensor.permute(order)  # in the order of memory, if that differs (channels last)
    if not tensor.is_contiguous():
        return None
    found: np.ndarray[Any, Any] = tensor.reshape(-1).view(torch.uint8).numpy()
    return found


#: Values of one gradient in this many are compared: clipping by ``.data`` changes all, and comparing takes time.
SAMPLED_OF = 8


class Changed:
    """What gradients were when ``backward`` had computed them.

    DDP averages in ``backward``, so what a script does to gradients after it is done to the mean. Here the mean is
    known to the servers alone, and what is not linear (clipping by norm or value) gives something else.

    Parameters
    ----------
    trained
        The parameters, by name.
    """

    def __init__(self, trained: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self._trained = dict(trained)
        self._sampled = {name for name, _ in trained[::SAMPLED_OF]}
        self._computed: dict[str, tuple[torch.Tensor, int, bytes]] = {}  # with PyTorch's count of writes, and a sample
        self._is_on = False
        self._warned = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._note, name)) for name, parameter in trained
            if parameter.requires_grad
        ]  # fmt: skip

    def _note(self, name: str, parameter: torch.Tensor) -> None:
        if self._is_on and (gradient := parameter.grad) is not None:
            self._computed[name] = gradient, gradient._version, self._sample(name, gradient)

    def _sample(self, name: str, gradient: torch.Tensor) -> bytes:
        return sample_of(gradient) if name in self._sampled else b""

    def check(self, *, unscaled: bool, num_workers: int) -> None:
        """Warn, once, where the gradients of a step were changed; a `GradScaler` may have ``unscaled`` them."""
        computed, self._computed = self._computed, {}
        self._is_on = num_workers > 1 and not self._warned  # from the next step on
        for name, (gradient, version, sample) in computed.items():
            now = self._trained[name].grad
            if now is not None and (
                now is not gradient
                or gradient._version > version + unscaled
                or (not unscaled and self._sample(name, gradient) != sample)
            ):
                self._warned, self._is_on = True, False
                log.warning(
                    "the gradient of %r was changed between backward and step, on this worker alone: with DDP it would "
                    "be the mean of %d workers. To clip the mean, pass clip_norm= or clip_value= to "
                    "zmqps.torch.Optimizer",
                    name,
                    num_workers,
                )
                return

    def close(self) -> None:
        """Watch nothing any more."""
        for hook in self._hooks:
            hook.remove()
