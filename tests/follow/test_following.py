"""A copy follows its table: by polls that fail, and resets that readers do not notice."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.server.followed import KINDS, Servers, some
from zmqps.errors import PeerLostError, PSError
from zmqps.follow.following import FollowedTable
from zmqps.follow.machine import Caught, Changed, FollowerMachine
from zmqps.net.identity import new_identity
from zmqps.settings.follower import FollowerSettings

EVERY = np.arange(-2, 60)


class Following:
    """A follower of `Servers`: what readers would get, at any time."""

    def __init__(self, servers: Servers, **settings: Any) -> None:
        self.servers = servers
        self.machine = FollowerMachine(new_identity("observer"))
        self.now = 0.0
        self.handed: list[Changed | Caught] = []
        spec = servers.job.tables[0]
        self.table = FollowedTable(FollowerSettings(**settings), spec, self.hand, clock=lambda: self.now)
        self.table.load()
        self.feed = servers.feed(since=self.table.cursor)

    def hand(self, event: Changed | Caught) -> None:
        self.handed.append(event)
        event.future = Future()
        self.machine.handle(event, 0.0)
        self.machine.validate()

    def poll(self) -> None:
        self.table.poll(self.feed, 1.0)

    def read(self, ids: Any = EVERY) -> list[list[float]]:
        assert self.machine.copy is not None
        rows: list[list[float]] = self.machine.copy.read(ids).tolist()
        return rows

    def expected(self) -> list[list[float]]:
        there = self.servers.rows()
        return [there.get(number, [1.0, 1.0]) for number in EVERY.tolist()]


@given(st.sampled_from([*KINDS]), st.lists(st.integers(0, 9), min_size=5, max_size=40), st.integers(0, 99))
def test_after_a_poll_readers_have_what_the_servers_have(kind: str, actions: list[int], seed: int) -> None:
    servers, rng = Servers(most_gone=8, secret=seed, **KINDS[kind]), np.random.default_rng(seed)
    following = Following(servers)
    for action in actions:
        if action < 5:
            servers.push(rng.choice(50, 1 + action * 3, replace=False), 1.0)
            servers.now += action
        elif action == 5:
            servers.go_back(int(rng.integers(2)))
        elif action == 6:
            servers.fails = 1
        else:
            try:
                following.poll()
            except PSError:
                continue
            assert following.read() == following.expected()
    servers.fails = 0
    following.poll()
    assert following.read() == following.expected()


def test_a_reset_is_filled_beside_the_copy_that_readers_have() -> None:
    servers = Servers()
    following = Following(servers)
    servers.push(np.arange(20), 1.0)
    following.poll()
    before = following.read()
    servers.push(np.arange(20), 1.0)
    servers.go_back(0)
    following.handed.clear()
    servers.fails = 0
    poll = following.feed.poll
    following.feed.poll = lambda **options: (part for part in _seen(following, poll, before, **options))  # type: ignore[method-assign]
    following.poll()
    assert [type(event) for event in following.handed] == [Caught]
    assert following.read() == following.expected()


def _seen(following: Following, poll: Any, before: Any, **options: Any) -> Any:
    for part in poll(**options):
        yield part
        assert following.read() == before, "not before the whole is there"


def test_the_next_follower_continues_from_what_was_saved(tmp_path: Path) -> None:
    servers = Servers()
    servers.push(np.arange(40), 1.0)
    first = Following(servers, save=tmp_path, save_every=60.0)
    first.poll()
    first.table.save()
    servers.push(some(3), 1.0)
    servers.asked = 0
    second = Following(servers, save=tmp_path, save_every=60.0)
    assert second.machine.copy is not None, "readers are answered at once"
    second.poll()
    assert second.read() == second.expected()
    assert sum(event.ids.size for event in second.handed if isinstance(event, Changed)) <= 40
    assert [type(event) for event in second.handed].count(Caught) == 2, "no reset"
    second.table.save()
    saved = (tmp_path / "follower.json").read_text()
    second.now = 59.0
    servers.push(some(4), 1.0)
    second.poll()
    second.table.save()
    assert (tmp_path / "follower.json").read_text() == saved, "not yet"
    second.now = 60.0
    second.table.save()
    assert (tmp_path / "follower.json").read_text() != saved


def test_a_disk_that_is_full_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    servers = Servers()
    servers.push(np.arange(40), 1.0)
    following = Following(servers, save=tmp_path, save_every=60.0)
    following.poll()
    monkeypatch.setattr("zmqps.checkpoint.table_file.os.replace", _full)
    following.table.save()
    assert "the copy cannot be saved" in caplog.text
    monkeypatch.undo()
    following.now = 100.0
    servers.push(some(1), 1.0)
    following.poll()
    following.table.save()
    assert (tmp_path / "follower.json").exists()
    assert not [*tmp_path.glob("*.tmp")]


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_poll_that_fails_leaves_the_copy_to_the_readers() -> None:
    servers = Servers()
    servers.push(np.arange(20), 1.0)
    following = Following(servers)
    servers.fails = 1
    with pytest.raises(PeerLostError):
        following.poll()
    assert following.machine.copy is None
    following.poll()
    assert following.read() == following.expected()
    servers.push(np.arange(20), 1.0)
    servers.fails = 1
    with pytest.raises(PeerLostError):
        following.poll()
    following.poll()
    assert following.read() == following.expected()
