"""Files of the coordinator's host, asked for by threads of a server that shares no directory with it."""

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
    """Something that a thread asks of the coordinator's disk; an event. Resolved by a `FileAnswer`.

    Parameters
    ----------
    what
        The method of `zmqps.checkpoint.storage.Storage` or ``File``.
    path, offset, nbytes, payload
        What it is asked with. The payload stays as it is until the answer is there.
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
    """The requests of one server that are not answered yet; a thread asks for one thing at a time."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._asked: dict[int, FileRequest] = {}

    def ask(self, request: FileRequest, now: float) -> list[Action]:
        """Ask the coordinator."""
        number = next(self._numbers)
        self._asked[number] = request
        return [_message(number, request)]

    def again(self) -> list[Action]:
        """Ask again over a new connection: each request may be carried out twice without harm."""
        return [_message(number, request) for number, request in self._asked.items()]

    def answer(self, message: FileAnswer, now: float) -> list[Action]:
        """Hand an answer to the thread that waits for it."""
        request = self._asked.pop(message.request, None)
        return [] if request is None else [Resolve(request, message)]


def _message(number: int, request: FileRequest) -> Action:
    asked = FileAsk(number, request.what, request.path, request.offset, request.nbytes, request.payload)
    return Send(COORDINATOR, asked)
