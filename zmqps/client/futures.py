"""Futures: of several operations, or of none; and methods in both forms, made from one definition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from zmqps import checks
from zmqps.client.thread import refuse_in_callback
from zmqps.errors import ConfigurationError

B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Joint(Future[Any]):
    """The joint future of several operations, with the result of the first; it cannot be withdrawn.

    Parameters
    ----------
    parts
        Their futures, not shared with other code; at least one.
    """

    def __init__(self, parts: Sequence[Future[Any]]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._parts, self._left, self._counting = tuple(parts), len(parts), threading.Lock()
        for part in self._parts:
            part.add_done_callback(self._ended)

    def result(self, timeout: float | None = None) -> Any:
        """Return the result once it is there; see `concurrent.futures.Future.result`."""
        self._wait(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception once it is there; see `concurrent.futures.Future.exception`."""
        self._wait(timeout)
        return super().exception(timeout)

    def _wait(self, timeout: float | None) -> None:
        for part in self._parts:
            part.exception(timeout)  # it raises where waiting is not allowed

    def _ended(self, part: Future[Any]) -> None:
        with self._counting:
            self._left -= 1
            if self._left:
                return
        error = next((found for part in self._parts if (found := part.exception()) is not None), None)
        if error is None:
            self.set_result(self._parts[0].result())
        else:
            self.set_exception(error)


def done(value: Any = None) -> Future[Any]:
    """Return a future with a result that is already there."""
    future = Future[Any]()
    future.set_result(value)
    return future


# --- methods in both forms ------------------------------------------------------------------------


def blocking(begins: Callable[Concatenate[B, P], Future[T]]) -> Callable[Concatenate[B, P], T]:
    """Return a method that waits for what another one begins, whose signature and docstring it has."""
    checked = checks.options()(begins)

    @wraps(begins)
    def method(self: B, /, *args: P.args, **kwargs: P.kwargs) -> T:
        refuse_in_callback()
        return checked(self, *args, **kwargs).result()

    result = str(begins.__annotations__["return"]).removeprefix("Future[").removesuffix("]")
    method.__annotations__ = {**begins.__annotations__, "return": result}
    vars(method).update(begins=checked, __signature__=signature(begins).replace(return_annotation=result))
    return method


def future_of(
    blocks: Callable[Concatenate[B, P], T],
) -> Callable[[Callable[[B, dict[str, Any]], R]], Callable[Concatenate[B, P], R]]:
    """Let a method that is given all arguments by name be the future form of a blocking one, with its signature."""
    shape = signature(blocks)
    names = [name for name, option in shape.parameters.items() if option.kind is option.POSITIONAL_OR_KEYWORD][1:]
    known = list(shape.parameters)[1:]
    defaults = {name: option.default for name, option in shape.parameters.items() if option.default is not option.empty}

    def decorate(begins: Callable[[B, dict[str, Any]], R]) -> Callable[Concatenate[B, P], R]:
        @wraps(begins)
        def method(self: B, /, *args: P.args, **kwargs: P.kwargs) -> R:
            given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            if len(given) != len(known) or len(args) > len(names):
                if wrong := [name for name in kwargs if name not in known]:
                    raise ConfigurationError(f"{method.__qualname__}() {checks.no_option(wrong[0], known)}")
                shape.bind(self, *args, **kwargs)  # which says what is missing, or too much
            return begins(self, given)

        result = begins.__annotations__["return"]
        method.__annotations__ = {**blocks.__annotations__, "return": result}
        vars(method).update(__signature__=shape.replace(return_annotation=result))
        vars(blocks).update(begins=method)
        return method

    return decorate


def begins(method: Callable[Concatenate[B, P], T]) -> Callable[Concatenate[B, P], Future[T]]:
    """Return what begins what a blocking method does, and returns its future."""
    found: Callable[Concatenate[B, P], Future[T]] = vars(method)["begins"]
    return found
