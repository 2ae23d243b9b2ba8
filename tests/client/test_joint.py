"""Futures of several operations: done when all are, with the result of the first, or an error of any."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.client.joint import Joint, done


def two() -> tuple[Future[Any], Future[Any], Joint]:
    parts = Future[Any](), Future[Any]()
    return *parts, Joint(parts)


def test_it_has_the_result_of_the_first_once_all_are_done() -> None:
    first, second, joint = two()
    told: list[Any] = []
    joint.add_done_callback(lambda future: told.append(future.result()))
    first.set_result("rows")
    assert (joint.done(), told) == (False, [])
    second.set_result(None)
    assert (joint.result(), told) == ("rows", ["rows"])
    assert joint.exception() is None


@for_each("which", [0, 1])
def test_it_fails_with_any_and_only_when_all_have_ended(which: int) -> None:
    first, second, joint = two()
    parts = [first, second]
    parts[which].set_exception(ValueError("no"))
    assert not joint.done()
    parts[1 - which].set_result(1)
    with pytest.raises(ValueError, match="no"):
        joint.result()


def test_it_cannot_be_withdrawn() -> None:
    first, second, joint = two()
    assert not joint.cancel()
    assert not first.cancelled()
    first.set_result(1)
    second.set_result(2)
    assert joint.result() == 1


def test_a_wait_has_a_timeout_and_a_part_may_refuse_it() -> None:
    first, second, joint = two()
    with pytest.raises(TimeoutError):
        joint.result(0.001)

    class Refusing(Future[Any]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            if not self.done():
                raise RuntimeError("nothing may wait here")
            return super().exception(timeout)

    with pytest.raises(RuntimeError, match="nothing may wait"):
        Joint([Refusing()]).result()
    first.set_result(1)
    second.set_result(2)


def test_parts_that_are_done_make_one_that_is() -> None:
    assert Joint([done(3), done()]).done()
    assert Joint([done(3), done()]).result() == 3
