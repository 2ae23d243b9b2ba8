"""Gradients that leave while `backward` still runs, and values that come while the next forward pass does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch

from zmqps.errors import ConfigurationError
from zmqps.torch.arrivals import Arrivals, Group
from zmqps.torch.model import Buffers, is_plain, outside_graphs, sample_of
from zmqps.worker import Worker

#: Gradients are pushed together from this many bytes on.
BUCKET_NBYTES = 4 << 20


class Overlap:
    """Hooks on a model's parameters and modules.

    Parameters
    ----------
    model, worker
        Whose gradients, and what pushes them.
    trained
        The parameters, by name.
    landed
        Called with the name of a parameter when its values have come.
    accumulate
        How many backward passes make a step: only the last one pushes.
    timeout
        Of each transfer.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        worker: Worker,
        trained: Sequence[tuple[str, torch.nn.Parameter]],
        landed: Callable[[str], None],
        accumulate: int,
        timeout: float | None,
    ) -> None:
        self._worker = worker
        self._timeout = timeout
        self._trained = dict(trained)
        self._landed = landed
        self._accumulate = accumulate
        self._passes: dict[str, int] = {}  # backward passes that a parameter has had in this step
        self._ready: dict[str, torch.Tensor] = {}
        self._ready_nbytes = 0
        self._pushed: dict[str, tuple[torch.Tensor, int, bytes]] = {}  # gradients that have left, and as what
        self._sending: list[Future[Any]] = []
        self._arrivals = Arrivals(model)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._computed, name))
            for name, parameter in trained
            if parameter.requires_grad
        ]

    # --- out -----------------------------------------------------------------------------------

    @outside_graphs  # type: ignore[untyped-decorator,unused-ignore]
    def _computed(self, name: str, parameter: torch.Tensor) -> None:
        """The gradient of a parameter is there: push it, with those before it, if it is that of a whole step."""
        self._passes[name] = self._passes.get(name, 0) + 1
        if self._passes[name] != self._accumulate or parameter.grad is None or parameter.grad.layout != torch.strided:
            return
        self._ready[name] = parameter.grad
        self._ready_nbytes += parameter.grad.nbytes
        if self._ready_nbytes >= BUCKET_NBYTES:
            self._flush()

    def _flush(self) -> None:
        gradients, self._ready, self._ready_nbytes = self._ready, {}, 0
        self._pushed |= {name: (g, g._version, sample_of(g)) for name, g in gradients.items()}
        self._sending.append(self._worker.push_async(gradients, step=False, timeout=self._timeout))

    def pushed(self, *, scaled: bool) -> set[str]:
        """Return the parameters whose gradients are in flight; begin a new step.

        Raises
        ------
        ConfigurationError
            One has changed since it was pushed. The step is skipped.
        """
        pushed = self._pushed
        self._reset()
        for name, (gradient, version, sample) in pushed.items():
            same = self._trained[name].grad is gradient and gradient._version == version
            if scaled or not same or sample_of(gradient) != sample:
                self._worker.skip(timeout=self._timeout)  # with what has left: the next step begins with nothing
                raise ConfigurationError(
                    f"the gradient of {name!r} has changed after overlap=True had pushed it, and this step is skipped: "
                    "do not call backward again after it has failed, clip by clip_norm= of the "
                    "optimizer, say how many backward passes make a step (accumulate=), freeze what a backward pass is "
                    "not for (requires_grad_(False)), use no GradScaler; or leave overlap out"
                )
        return set(pushed)

    def drop(self) -> bool:
        """The step is skipped; return whether anything of it had left."""
        left = bool(self._pushed)
        self._reset()
        sending, self._sending = self._sending, []
        for sent in sending:
            sent.exception()  # servers may have refused what is not finite
        return left

    def _reset(self) -> None:
        self._passes, self._ready, self._ready_nbytes, self._pushed = {}, {}, 0, {}

    # --- in ------------------------------------------------------------------------------------

    def pull(self, sent: Sequence[Future[Any]], buffers: Buffers) -> None:
        """Ask for the values after a step; what reads a tensor waits for it.

        Servers have all gradients when this returns: they may be overwritten.
        """
        returning = buffers.returning()
        tensors = {**{name: parameter.detach() for name, parameter in self._trained.items()}, **returning}
        futures = self._ask(tensors)
        for name, parameter in self._trained.items():
            self._arrivals.expect(Group([parameter], [futures[name]], partial(self._landed, name)))
        if not returning:
            buffers.end_step()
        else:
            live = [tensor for name, tensor in buffers.live().items() if name in returning]
            self._arrivals.expect(Group(live, [futures[name] for name in returning], buffers.end_step))
        sending, self._sending = self._sending, []
        for future in (*sending, *sent):
            future.result()

    def _ask(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Future[Any]]:
        """Ask for values; return the future of each name."""
        arrays = {name: tensor.numpy() for name, tensor in tensors.items() if is_plain(tensor)}
        others = {name: tensor for name, tensor in tensors.items() if name not in arrays}
        futures: dict[str, Future[Any]] = {}
        if others:
            futures |= dict.fromkeys(others, self._worker.pull_async(out=others, timeout=self._timeout))
        if arrays:
            futures |= self._worker.pull_each_async(out=arrays, timeout=self._timeout)
        return futures

    def wait(self) -> None:
        """Return when all values are in the model."""
        self._arrivals.wait()

    def close(self) -> None:
        """Take the hooks off."""
        self._arrivals.close()
        for hook in self._hooks:
            hook.remove()
