"""Notices gradients that a script changes before the mean over the workers is known, as clipping does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import torch

from zmqps.torch.model import sample_of

log = logging.getLogger("zmqps")

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
