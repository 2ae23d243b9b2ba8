"""The disk of the coordinator's host as a storage of a server's: each call is a message, and waits for the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from zmqps.checkpoint.storage import Bytes
from zmqps.core.protocol.messages import FileAnswer
from zmqps.core.server.saves import FileRequest
from zmqps.errors import CheckpointStorageError

#: What a path begins with that is one of the coordinator's host.
SCHEME = "coordinator:"
#: An answer takes as long as the disk there; a coordinator that says nothing for so long is not waited for.
ANSWER_S = 120.0
#: So often a thread that waits looks whether the server has ended.
LOOK_S = 0.5
#: Bytes that a request carries at most.
CHUNK_NBYTES = 4 << 20


class RelayStorage:
    """Files of the coordinator's host (`zmqps.checkpoint.storage.Storage`).

    Attributes
    ----------
    submit : callable
        Hands a `FileRequest` to the server's machine, from any thread; set once that runs.
    """

    renames = True

    def __init__(self) -> None:
        self.submit: Callable[[FileRequest], None] = lambda request: None
        self._ended = threading.Event()

    def end(self) -> None:
        """The server has ended: no request is answered any more."""
        self._ended.set()

    def resolve(self, request: FileRequest, answer: FileAnswer) -> None:
        """Hand an answer to the thread that waits for it."""
        request.future.set_result(answer)

    def ask(self, what: str, path: str, offset: int = 0, nbytes: int = 0, payload: Any = ()) -> FileAnswer:
        """Ask, wait, and raise what failed there.

        Raises
        ------
        OSError
            As the file system there says.
        CheckpointStorageError
            The coordinator does not answer.
        """
        request = FileRequest(what=what, path=path, offset=offset, nbytes=nbytes, payload=payload, future=Future())
        self.submit(request)
        waited = 0.0
        while not self._ended.is_set() and waited < ANSWER_S:
            try:
                answer: FileAnswer = request.future.result(LOOK_S)
            except TimeoutError:
                waited += LOOK_S
                continue
            if "errno" in answer.value:
                raise OSError(int(answer.value["errno"]), str(answer.value.get("why", "")))
            return answer
        raise CheckpointStorageError(
            path=path, what=f"the coordinator has not answered for {waited:.0f} s", good="", advice="look at its host"
        )

    def make_directory(self, path: str) -> None:
        """Make a directory."""
        self.ask("make_directory", path)

    def create(self, path: str) -> RelayFile:
        """Return a new file."""
        self.ask("create", path)
        return RelayFile(self, path)

    def read(self, path: str, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Return bytes of a file."""
        stop = offset + (self.size(path) - offset if nbytes is None else nbytes)
        parts: list[bytes] = []
        while offset < stop:
            answer = self.ask("read", path, offset, min(CHUNK_NBYTES, stop - offset))
            part = b"".join(bytes(buffer) for buffer in answer.payload)
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def size(self, path: str) -> int:
        """Return the length of a file."""
        return int(self.ask("size", path).value["size"])

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return [str(name) for name in self.ask("names", path).value["names"]]

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory of that name."""
        return bool(self.ask("is_directory", path).value["is"])

    def modified_at(self, path: str) -> float:
        """Return when it was last changed."""
        return float(self.ask("modified_at", path).value["at"])

    def rename(self, old: str, new: str) -> None:
        """The coordinator publishes."""
        raise OSError("a server renames nothing on the coordinator's host")

    def sync_directory(self, path: str) -> None:
        """Wait until the names will survive."""
        self.ask("sync_directory", path)

    def remove(self, path: str) -> None:
        """The coordinator removes what has failed."""
        raise OSError("a server removes nothing on the coordinator's host")


class RelayFile:
    """A file of the coordinator's host that is being written."""

    def __init__(self, storage: RelayStorage, path: str) -> None:
        self._storage = storage
        self._path = path

    def write_at(self, data: Bytes, offset: int) -> None:
        """Write all bytes."""
        rest = memoryview(data).cast("B")
        while rest:
            self._storage.ask("write", self._path, offset, payload=(rest[:CHUNK_NBYTES],))
            rest, offset = rest[CHUNK_NBYTES:], offset + min(CHUNK_NBYTES, rest.nbytes)

    def sync(self) -> None:
        """Wait until it will survive."""
        self._storage.ask("sync", self._path)

    def close(self) -> None:
        """The coordinator closes it when the checkpoint is published, or given up."""
