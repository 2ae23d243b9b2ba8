"""Files of the coordinator's host, requested by threads of a server without a shared directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from zmqps.core.protocol.events import COORDINATOR, Action, Resolve, Send
from zmqps.core.protocol.messages import FileAnswer, FileAsk

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


@dataclass(slots=True, eq=False, kw_only=True)
class FileRequest:
    """A thread's request to the coordinator's disk; an event. Resolved by a `FileAnswer`.

    Parameters
    ----------
    what
        The method of `zmqps.checkpoint.storage.Storage` or ``File``.
    path, offset, nbytes, payload
        Its arguments. The payload does not change until the answer arrives.
    future
        The thread's, and opaque here.
    """

    what: str
    path: str
    offset: int = 0
    nbytes: int = 0
    payload: Sequence[Buffer] = field(default=(), repr=False)
    future: Any = None


class FileRelay:
    """The unanswered requests of one server; a thread has one at a time."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._asked: dict[int, FileRequest] = {}

    def ask(self, request: FileRequest, now: float) -> list[Action]:
        """Send a request to the coordinator."""
        number = next(self._numbers)
        self._asked[number] = request
        return [_message(number, request)]

    def again(self) -> list[Action]:
        """Repeat requests over a new connection: each may be carried out twice without harm."""
        return [_message(number, request) for number, request in self._asked.items()]

    def answer(self, message: FileAnswer, now: float) -> list[Action]:
        """Pass an answer to the thread that waits for it."""
        request = self._asked.pop(message.request, None)
        return [] if request is None else [Resolve(request, message)]


def _message(number: int, request: FileRequest) -> Action:
    asked = FileAsk(number, request.what, request.path, request.offset, request.nbytes, request.payload)
    return Send(COORDINATOR, asked)
