"""What the two ends of `zmqps launch` say to each other: one JSON object a line, over the connection of ssh."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from zmqps.errors import ConfigurationError
from zmqps.files import TEXT_NBYTES, read_file

#: What the first line of an agent begins with; before it a login shell may say anything, so much at most.
GREETING = "zmqps-agent "
MAX_PREAMBLE_LINES = 1000
#: A line is some output of a process, or a file.
MAX_LINE_NBYTES = 8 << 20
#: In settings and variables: the folder of the files that were handed over.
FILES = "{files}"

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Return a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line; raise `ConfigurationError` if there is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ConfigurationError(f"{line[:80]!r} is not a message of zmqps launch; does a login script print?")
    return message


def filled(told: Any, places: Mapping[str, str]) -> Any:
    """Return plain data with the places that its texts name."""
    if isinstance(told, Mapping):
        return {name: filled(value, places) for name, value in told.items()}
    if isinstance(told, list | tuple):
        return [filled(value, places) for value in told]
    if isinstance(told, str):
        for name, place in places.items():
            told = told.replace(name, place)
    return told


class Voice:
    """Writes messages; `flush` waits until they are read."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._turn = asyncio.Lock()

    def say(self, message: Message) -> None:
        """Say a message, whenever there is room for it."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def flush(self) -> None:
        """Wait until there is room for more; raise `ConnectionError` if the reader has closed its end."""
        async with self._turn:
            await self._writer.drain()

    def close(self) -> None:
        """End the conversation."""
        self._writer.close()


async def open_reader(file: Any) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Return a stream on a pipe or socket, and what closes it."""
    reader = asyncio.StreamReader(MAX_LINE_NBYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader, transport


async def open_voice(file: Any) -> Voice:
    """Return a writer of messages to a pipe or socket."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
    return Voice(asyncio.StreamWriter(transport, protocol, None, loop))


# --- files --------------------------------------------------------------------------------------


def pack(path: Path) -> str:
    """Return a file's content as text."""
    return base64.b64encode(read_file(path, TEXT_NBYTES)).decode()


def unpack(text: str) -> bytes:
    """Return the content that `pack` has made a text of; raise `ConfigurationError` for any other text."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ConfigurationError(f"{text!r:.80} cannot be the content of a file") from None


def check_name(name: object) -> str:
    """Return a file's name below the folder of files; raise `ConfigurationError` for one that leads elsewhere."""
    path = PurePosixPath(str(name))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(name):
        raise ConfigurationError(f"{name!r:.100} cannot be the name of a file")
    return str(path)
