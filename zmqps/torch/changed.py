"""Notices gradients that a script changes before the mean over the workers is known, as clipping does."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

log = logging.getLogger("zmqps")

#: So many parameters are watched: what clips changes all of them.
WATCHED = 4


class Changed:
    """What the gradients of some parameters were when ``backward`` had computed them.

    DDP averages in ``backward``, so what a script does to gradients after it is done to the mean. Here the mean is
    known to the servers alone, and what is not linear (clipping by norm or value) gives something else.

    Parameters
    ----------
    trained
        The parameters, by name.
    """

    def __init__(self, trained: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self._computed: dict[str, tuple[torch.Tensor, int]] = {}  # by name, with PyTorch's count of writes
        self._warned = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: self._note(name, p))
            for name, parameter in trained[:: -(-len(trained) // WATCHED) or 1]
            if parameter.requires_grad
        ]

    def _note(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._computed[name] = parameter.grad, parameter.grad._version

    def check(self, *, unscaled: bool, num_workers: int) -> None:
        """Warn, once, where the gradients of a step were changed; a `GradScaler` may have ``unscaled`` them."""
        computed, self._computed = self._computed, {}
        if self._warned or num_workers < 2:
            return
        changed = [name for name, (gradient, version) in computed.items() if gradient._version > version + unscaled]
        if changed:
            self._warned = True
            log.warning(
                "the gradient of %r was changed between backward and step, on this worker alone: with DDP it would be "
                "the mean of %d workers. To clip the mean, pass clip_norm= or clip_value= to zmqps.torch.Optimizer",
                changed[0],
                num_workers,
            )

    def close(self) -> None:
        """Watch nothing any more."""
        for hook in self._hooks:
            hook.remove()
