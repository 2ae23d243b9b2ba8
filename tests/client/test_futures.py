"""Futures of several operations: done when all are, with the result of the first, or an error of any."""

from __future__ import annotations

import inspect
from concurrent.futures import Future
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.client.futures import Joint, begins, blocking, done, future_of
from zmqps.errors import ConfigurationError


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


class Clock:
    """Something with methods in both forms."""

    @blocking
    def sleep(self, seconds: float, *, name: str = "a") -> Future[str]:
        """Sleep."""
        return done(f"{name} slept {seconds}")

    def wake(self, seconds: float, *, name: str = "b") -> str:
        """Wake up."""
        return f"{name} woke after {seconds}"

    @future_of(wake)
    def wake_async(self, given: dict[str, Any]) -> Future[str]:
        """`wake`, as a future."""
        return done(self.wake(**given))


def test_a_method_that_waits_is_made_from_what_begins_it() -> None:
    assert Clock().sleep(3) == "a slept 3"
    assert begins(Clock.sleep)(Clock(), 3, name="c").result() == "c slept 3"
    assert str(inspect.signature(Clock.sleep)) == "(self, seconds: 'float', *, name: 'str' = 'a') -> 'str'"
    assert (Clock.sleep.__doc__, Clock.sleep.__qualname__) == ("Sleep.", "Clock.sleep")
    with pytest.raises(ConfigurationError, match=r"Clock.sleep\(\) has no option 'nmae'; did you mean 'name'\?"):
        Clock().sleep(3, nmae="c")  # type: ignore[call-arg]


def test_a_future_form_has_the_arguments_and_defaults_of_the_blocking_one() -> None:
    assert Clock().wake_async(3).result() == "b woke after 3"
    assert Clock().wake_async(seconds=3, name="c").result() == begins(Clock.wake)(Clock(), 3, name="c").result()
    parameters = [inspect.signature(method).parameters for method in (Clock.wake, Clock.wake_async)]
    assert parameters[0] == parameters[1]
    assert Clock.wake_async.__doc__ == "`wake`, as a future."
    with pytest.raises(ConfigurationError, match=r"Clock.wake_async\(\) has no option 'nmae'; did you mean 'name'\?"):
        Clock().wake_async(3, nmae="c")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'seconds'"):
        Clock().wake_async()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional arguments"):
        Clock().wake_async(3, "c")  # type: ignore[call-arg]
