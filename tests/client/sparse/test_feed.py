"""What a feed yields, where it goes on, and what it says where it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.core.server.followed import DIM, Servers, followed, some
from tests.tables import for_each
from zmqps.errors import ConfigurationError, PeerLostError


def test_the_first_poll_has_all_rows_and_later_ones_what_has_changed() -> None:
    servers, copy = Servers(), dict[int, list[float]]()
    feed = servers.feed(most=1000)
    servers.push(some(1, 2, 3), 1.0)
    parts = followed(feed, copy)
    assert [part.reset for part in parts] == [True] + [False] * (len(parts) - 1)
    assert copy == {1: [0.0] * DIM, 2: [0.0] * DIM, 3: [0.0] * DIM}
    assert all(part.rows.dtype == np.float32 and part.ids.dtype == np.int64 for part in parts)
    for _ in range(3):
        servers.push(some(2), 1.0)
    assert {*followed(feed, copy)[0].ids.tolist()} <= {1, 2, 3}  # those of the last update that was told come twice
    servers.push(some(2), 1.0)
    [part] = followed(feed, copy)
    assert (part.reset, part.gone.tolist(), part.ids.tolist(), part.rows.tolist()) == (False, [], [2], [[-4.0] * DIM])


def test_what_is_there_can_be_left_out() -> None:
    servers = Servers()
    servers.push(np.arange(100), 1.0)
    servers.push(np.arange(10), 1.0)
    feed = servers.feed()
    feed.skip()
    assert list(feed) == []
    servers.push(some(100, 2), 1.0)
    parts = list(feed)
    assert not any(part.reset for part in parts)
    assert {2, 100} <= {number for part in parts for number in part.ids.tolist()} <= {*range(10), 100}


def test_a_poll_that_was_not_gone_through_comes_again_as_a_whole() -> None:
    servers, copy = Servers(), dict[int, list[float]]()
    feed = servers.feed()
    servers.push(np.arange(50), 1.0)
    followed(feed, copy)
    cursor = feed.cursor
    servers.push(np.arange(50), 1.0)
    poll = feed.poll()
    next(poll)
    del poll
    servers.fails = 1
    with pytest.raises(PeerLostError):
        next(feed.poll())
    assert feed.cursor == cursor
    assert sum(part.ids.size for part in followed(feed, copy)) == 50
    assert copy == servers.rows()


def test_while_all_rows_come_there_is_no_cursor() -> None:
    servers = Servers()
    servers.push(np.arange(50), 1.0)
    feed = servers.feed()
    assert (feed.cursor, feed.version) == ([], 0)
    poll = feed.poll()
    for _ in range(3):
        next(poll)
    assert (feed.cursor, feed.version) == ([], 0)
    list(poll)
    assert feed.version == 1
    assert [row[:2] for row in feed.cursor] == [[s.start, s.stop] for s in servers.requests.table("items").parts.slices]


def test_a_job_that_lies_in_other_shards_is_read_anew() -> None:
    servers = Servers()
    feed = servers.feed()
    servers.push(np.arange(50), 1.0)
    list(feed)
    other = servers.feed([[0, 7, *feed.cursor[0][2:]], *feed.cursor[1:]])
    assert next(other.poll()).reset
    poll = feed.poll()
    servers.push(np.arange(50), 1.0)
    next(poll)
    servers.requests.lie(servers.placement)  # in the midst of a poll
    assert any(part.reset for part in poll)


@for_each("since", [[[1, 2]], [[0, 512, 1, 2, 3, 4, -5]], [[0, 512, 1, 2, 3, 4, "x"]], [7], 7])
def test_what_is_no_cursor_is_said(since: Any) -> None:
    with pytest.raises(ConfigurationError, match="since is what the cursor of an earlier feed was"):
        Servers().feed(since)


def test_a_cursor_of_another_cluster_is_none_of_this_one() -> None:
    """Which counts its shards' copies from 1 as well."""
    before, now = Servers(secret=1), Servers(secret=2)
    feed, copy = before.feed(), dict[int, list[float]]()
    for servers in (before, now):
        servers.push(np.arange(50), 1.0)
    followed(feed, copy)
    now.push(np.arange(50), 1.0)
    assert followed(now.feed(feed.cursor), copy)[0].reset
    assert copy == now.rows()
