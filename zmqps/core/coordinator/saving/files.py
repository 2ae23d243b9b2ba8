"""Files of checkpoints that servers write and read by way of the coordinator, where they share no directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.protocol.events import Action, Run, Send
from zmqps.core.protocol.messages import FileAnswer, FileAsk
from zmqps.errors import ConfigurationError, LimitError, PSError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: A server has a thread a shard that writes, and asks for one thing at a time; each is a slice at most.
MAX_ASKED = 16


class Served(NamedTuple):
    """What came of a request: plain data, bytes, or why it failed (``errno`` and words)."""

    value: Mapping[str, Any]
    payload: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class Serving:
    """Tag of what is done aside for a server."""

    server: bytes
    request: int


class FileService:
    """What servers ask of this host's disk.

    ``serve(what, path, offset, nbytes, payload)`` carries a request out, in another thread; None: servers have the
    directory themselves.
    """

    def __init__(
        self,
        members: Mapping[bytes, MemberInfo],
        serve: Callable[[str, str, int, int, Sequence[Buffer]], Served] | None,
    ) -> None:
        self._members = members
        self._serve = serve
        self._asked: Counter[bytes] = Counter()

    def ask(self, server: MemberInfo, message: FileAsk, now: float) -> list[Action]:
        """A server asks for something.

        Raises `ConfigurationError`: servers must have the directory themselves; `LimitError`: it asks for too much at
        a time.
        """
        if self._serve is None:
            raise ConfigurationError("this coordinator keeps no files for servers: --checkpoint-via coordinator")
        if self._asked[server.incarnation] >= MAX_ASKED:
            got = self._asked[server.incarnation] + 1
            raise LimitError(what="number of requests for files at a time", got=got, limit=MAX_ASKED)
        self._asked[server.incarnation] += 1
        work = partial(self._serve, message.what, message.path, message.offset, message.nbytes, message.payload)
        return [Run(Serving(server.incarnation, message.request), work)]

    def returned(self, tag: Serving, value: Served | Exception) -> list[Action]:
        """It is done, or has failed."""
        self._asked[tag.server] -= 1
        if not self._asked[tag.server]:
            del self._asked[tag.server]
        server = self._members.get(tag.server)
        if server is None:
            return []
        if isinstance(value, Exception):
            number = value.errno if isinstance(value, OSError) else 0
            why = str(value) if isinstance(value, PSError | OSError) else repr(value)
            value = Served({"errno": number or 0, "why": why[:300]})
        return [Send(server.peer, FileAnswer(tag.request, value.value, value.payload))]


class Store(Protocol):
    """Where checkpoints are; called from other threads."""

    #: Whether servers reach the files by way of the coordinator.
    serves: bool

    def serve(self, what: str, path: str, offset: int, nbytes: int, payload: Sequence[Buffer]) -> Served:
        """Do something with a file for a server."""

    def read_at(self, path: str) -> str:
        """Return where servers read a checkpoint."""

    def begin(self, job: str, version: int) -> str:
        """Make room for a checkpoint and return where servers write their parts."""

    def publish(self, path: str, manifest: Mapping[str, Any]) -> tuple[str, int, int]:
        """Let what was written be the newest checkpoint of its job; return where it is, its bytes, and its version."""

    def abandon(self, path: str) -> None:
        """Remove what was written of one that failed."""
