"""How a model is trained: the options of `zmqps.torch.Optimizer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zmqps import checks
from zmqps.errors import ConfigurationError
from zmqps.torch.buffers import BUFFERS


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `zmqps.torch.Optimizer`, which describes them; ``init`` are those of `zmqps.Worker.init`."""

    mode: str
    staleness: int | None
    clip_norm: float | None
    clip_value: float | None
    count: str
    buffers: str | None
    share_gradients: bool
    overlap: bool
    accumulate: int
    process_group: Any
    timeout: float | None
    init: Mapping[str, Any]

    @property
    def sync(self) -> bool:
        """Whether workers train as one large batch."""
        return self.mode == "sync"

    @property
    def buffers_by(self) -> str:
        """What is done with buffers."""
        return self.buffers or ("average" if self.sync else "chief")

    def check(self, *, has_worker: bool) -> None:
        """Raise `ConfigurationError` where options do not go together."""
        checks.one_of("buffers", self.buffers_by, BUFFERS)
        checks.whole("accumulate", self.accumulate, 1)
        if self.buffers_by == "average" and not self.sync:
            raise ConfigurationError(
                "buffers are averaged in a synchronous step: pass mode=\"sync\", or buffers='chief'"
            )
        if not has_worker and self.process_group is None:
            raise ConfigurationError("worker=None is for processes of a process_group whose first one has the worker")
        if self.accumulate > 1 and not self.overlap:
            raise ConfigurationError(
                "accumulate= is for overlap=True; without it, call step() after as many backward passes as you like"
            )
        if self.overlap and self.clip_norm is not None and not self.sync:
            raise ConfigurationError('overlap=True pushes before the norm is known: clip_norm needs mode="sync"')
