"""Requests that wait to be sent again: when each leaves, and for how long it is tried."""

from __future__ import annotations

from itertools import pairwise

import pytest

from zmqps.core.worker.connections.link import SHORT_S, SLOWEST_RETRY_S, Resends
from zmqps.core.worker.transfer import Delay, PullTransfer, Request, Target


def request() -> Request:
    return Request(transfer=PullTransfer(target=Target()), cargoes=(), nbytes=0)


def again_at(one: Request) -> float | None:
    assert one.delay is not None
    return one.delay.retry_at


def test_what_was_put_off_is_taken_when_it_is_due_and_no_sooner() -> None:
    resends, late, soon = Resends(), request(), request()
    resends.put_off(late, 2.0)
    resends.put_off(soon, 1.0)
    resends.validate()
    assert resends.due == 1.0
    assert resends.take(0.9) == []
    assert resends.take(1.0) == [soon]
    assert (again_at(soon), again_at(late), resends.due) == (None, 2.0, 2.0)
    assert resends.take(2.0) == [late]
    assert (bool(resends), resends.due) == (False, None)
    resends.validate()


def test_what_is_refused_again_and_again_waits_ever_longer_until_it_is_given_up() -> None:
    resends, refused, now, times = Resends(), Delay(), 5.0, [5.0]
    while (at := resends.refused(refused, now)) is not None:
        now = at
        times.append(at)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(SLOWEST_RETRY_S)
    assert SHORT_S <= now - 5.0 < SHORT_S + SLOWEST_RETRY_S


def test_what_is_sent_again_with_all_others_is_put_off_no_more() -> None:
    resends, one, other = Resends(), request(), request()
    resends.put_off(one, 3.0)
    resends.at_once.append(other)
    assert resends.of(one.transfer) == [one]
    assert resends.of(other.transfer) == []
    resends.clear()
    assert (again_at(one), resends.due, resends.at_once, resends.of(one.transfer)) == (None, None, [], [])
    resends.validate()
