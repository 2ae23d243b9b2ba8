"""A follower that cannot follow tries again, ever more rarely, and at once when it has followed meanwhile."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.errors import PeerLostError
from zmqps.follow import process
from zmqps.follow.process import Following
from zmqps.settings.follower import FollowerSettings

LOST = PeerLostError(role="coordinator", name="c", silent_s=1.0, advice="")


class Ending:
    """An event that is set after so many waits."""

    def __init__(self, times: int) -> None:
        self.waits: list[float] = []
        self._times = times

    def is_set(self) -> bool:
        return len(self.waits) >= self._times

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)


class Followed:
    """A table that can be polled every fourth time."""

    cursor = ()
    spec = None

    def __init__(self) -> None:
        self.polls = 0

    def poll(self, feed: Any, timeout: float) -> None:
        self.polls += 1
        if self.polls % 4:
            raise LOST

    def save(self) -> None:
        pass


class Joined:
    """A worker, and its table."""

    spec = None

    def table(self, name: str) -> Any:
        return self

    def _requests(self, timeout: float) -> Any:
        return self

    def changes(self, **options: Any) -> None:
        pass


@for_each("error", [LOST, RuntimeError("a defect")])
def test_it_waits_longer_each_time(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(FollowerSettings(), "items", print)
    following.ending = ending = Ending(7)  # type: ignore[assignment]
    monkeypatch.setattr(following, "_connected", lambda: (_ for _ in ()).throw(error))
    following.run()
    assert ending.waits == [0.5, 1.0, 2.0, 4.0, 8.0, process.MAX_RETRY_S, process.MAX_RETRY_S]


def test_after_a_poll_it_begins_with_short_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(FollowerSettings(every=7.0), "items", print)
    following.ending = ending = Ending(8)  # type: ignore[assignment]
    following._followed = Followed()  # type: ignore[assignment]

    @contextmanager
    def connected() -> Any:
        yield Joined()

    monkeypatch.setattr(following, "_connected", connected)
    following.run()
    assert ending.waits[:8] == [0.5, 1.0, 2.0, 7.0, 0.5, 1.0, 2.0, 7.0]
