"""A clock that tests set."""

from __future__ import annotations


class Time:
    """What `time.monotonic` returns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False
