"""How long a shard's updates take."""

from __future__ import annotations

from collections.abc import Callable


class Timing:
    """How long updates take, by the shell's clock: the core has none of its own."""

    __slots__ = ("clock", "num", "seconds")

    def __init__(self) -> None:
        self.clock: Callable[[], float] = float  # 0, unless the shell says otherwise
        self.seconds = 0.0
        self.num = 0
