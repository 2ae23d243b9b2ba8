"""Spans of a process in a fixed number of bytes, the newest ones; and those of all nodes as one trace.

What is read from a ring is `MAGIC`, the length of a head in JSON, the head, and one record a span, the oldest first.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zmqps.errors import ConfigurationError, ProtocolError
from zmqps.trace.merge import Clock, Process, Span, Trace, wires_of

MAGIC = b"zmqps spans 1\n"
LENGTH = struct.Struct("<I")
#: Name, role, detail and flags; thread, worker, slice; begin and end in nanoseconds; request, version, step and bytes.
RECORD = struct.Struct("<HHHHIIIIqqQQQQ")
#: Names come from the source, so they are few; one that comes when there are this many is called so.
MAX_NAMES = 1024
OTHER = "other"
#: A head is no larger, with all names that there may be.
MAX_HEAD_NBYTES = 256 << 10
MAX_NAME_CHARS = 200

NO_SLICE, NO_NUMBER = (1 << 32) - 1, (1 << 64) - 1
#: Flags: the span is a wait; and what its detail is.
WAIT = 1
DETAILS = ("", "message", "event", "operation")
_BITS = {name: number << 1 for number, name in enumerate(DETAILS)}


class Ring:
    """Spans of one process; when it is full the oldest make room.

    Parameters
    ----------
    nbytes
        Of its memory.
    head
        What else to say of the process, as plain data.
    """

    def __init__(self, nbytes: int, head: dict[str, Any] | None = None) -> None:
        self._room = max(1, nbytes // RECORD.size)
        self._memory = bytearray(self._room * RECORD.size)
        self._count = 0
        self._names: dict[str, int] = {OTHER: 0}
        self._head = head or {}
        self._lock = threading.Lock()
        self._parts: list[bytes | memoryview] = []

    def span(self, name: str, role: str, begin: int, end: int, kind: str = "X", **facts: Any) -> None:
        """Note that something lasted from ``begin`` to ``end``, in nanoseconds of `time.monotonic_ns`.

        Kind ``X`` is work of this thread, in which other work is nested; ``b`` is a wait, which may overlap with
        anything.
        """
        detail, flags = 0, WAIT if kind == "b" else 0
        for what in DETAILS[1:]:
            if (said := facts.get(what)) is not None:
                detail, flags = self._number(said), flags | _BITS[what]
        worker, request = 0, NO_NUMBER
        if (label := facts.get("request")) is not None:
            who, _, number = label.partition("-")
            worker, request = int(who or "0", 16), int(number)
        values = (
            self._number(name), self._number(role), detail, flags, threading.get_native_id() & 0xFFFFFFFF, worker,
            facts.get("slice", NO_SLICE), 0, begin, end, request, facts.get("version", NO_NUMBER),
            facts.get("step", NO_NUMBER), facts.get("nbytes", NO_NUMBER),
        )  # fmt: skip
        with self._lock:
            RECORD.pack_into(self._memory, self._count % self._room * RECORD.size, *values)
            self._count += 1

    def _number(self, name: str) -> int:
        number = self._names.get(name)
        if number is None:
            full = len(self._names) >= MAX_NAMES
            number = self._names[name[:MAX_NAME_CHARS]] = 0 if full else len(self._names)
            if full:
                del self._names[name[:MAX_NAME_CHARS]]
        return number

    def close(self) -> None:
        """Take nothing any more: what there is is ready to be read."""
        with self._lock:
            head = json.dumps({**self._head, "names": list(self._names), "lost": self.lost // RECORD.size}).encode()
            view = memoryview(self._memory).toreadonly()
            if self._count <= self._room:
                kept = [view[: self._count * RECORD.size]]
            else:
                at = self._count % self._room * RECORD.size
                kept = [view[at:], view[:at]]
            self._parts = [MAGIC + LENGTH.pack(len(head)) + head, *kept]

    @property
    def nbytes(self) -> int:
        """How many bytes can be read, once it is closed."""
        return sum([len(part) for part in self._parts])

    @property
    def lost(self) -> int:
        """How many bytes had to make room."""
        return max(0, self._count - self._room) * RECORD.size

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return that many bytes from an offset on, or what there is of them."""
        pieces = []
        for part in self._parts:
            piece = part[min(offset, len(part)) : min(offset + nbytes, len(part))]
            pieces.append(piece)
            offset, nbytes = max(0, offset - len(part)), nbytes - len(piece)
        return b"".join(pieces)


def unpack(data: bytes) -> tuple[Process, dict[str, Any]]:
    """Return the spans that were read from a ring, and its head.

    Raises
    ------
    ProtocolError
        These bytes are of no ring, or were cut off.
    """
    start = len(MAGIC) + LENGTH.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise ProtocolError("these bytes are not recorded spans")
    (nbytes,) = LENGTH.unpack_from(data, len(MAGIC))
    if nbytes > MAX_HEAD_NBYTES or (len(data) - start - nbytes) % RECORD.size or len(data) < start + nbytes:
        raise ProtocolError("recorded spans were cut off")
    try:
        head = json.loads(data[start : start + nbytes])
        names = [str(name)[:MAX_NAME_CHARS] for name in head["names"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"the head of recorded spans cannot be read: {error!s:.100}") from None
    process = Process(name=str(head.get("title", ""))[:MAX_NAME_CHARS], boot=str(head.get("boot", ""))[:64])
    process.spans = list(_spans(memoryview(data)[start + nbytes :], lambda n: names[n] if n < len(names) else OTHER))
    return process, head


def _spans(records: memoryview, name_of: Callable[[int], str]) -> Iterator[Span]:
    for values in RECORD.iter_unpack(records):
        name, role, detail, flags, thread, worker, slice_, _, begin, end, request, version, step, nbytes = values
        facts: dict[str, Any] = {}
        if what := DETAILS[flags >> 1 & 3]:
            facts[what] = name_of(detail)
        if request != NO_NUMBER:
            facts["request"] = f"{worker:08x}-{request}"
        if slice_ != NO_SLICE:
            facts["slice"] = slice_
        for title, number in (("version", version), ("step", step), ("nbytes", nbytes)):
            if number != NO_NUMBER:
                facts[title] = number
        yield Span(
            name=name_of(name), role=name_of(role), begin_us=begin / 1e3, end_us=max(begin, end) / 1e3,
            thread=None if flags & WAIT else thread, facts=facts,
        )  # fmt: skip


def assemble(nodes: Sequence[Mapping[str, Any]], data: Mapping[str, bytes | bytearray]) -> Trace:
    """Return the trace of what was fetched.

    Processes of the coordinator's host share its clock. The others' were compared with it four times a second while
    they recorded, and are shifted by what they differ.

    Parameters
    ----------
    nodes
        What the coordinator has said of each: ``who``, ``role``, ``rank``, ``name``, ``offset_s``, ``error_s``.
    data
        What each has recorded, by ``who``.

    Raises
    ------
    ConfigurationError
        No node has recorded anything.
    """
    found: list[tuple[Mapping[str, Any], Process]] = []
    notes, epoch_ns, own = [], 0, ""
    for node in nodes:
        if (packed := data.get(str(node.get("who")))) is None:
            continue
        try:
            process, head = unpack(bytes(packed))
        except ProtocolError as error:
            notes.append(f"{node.get('role')} {node.get('rank')}: {error}")
            continue
        role = "worker" if node.get("role") == "observer" else node.get("role")
        process.name = f"{node.get('role')} {node.get('rank')} ({node.get('name')}, {node.get('host')})"
        process.label = f"{role} {node.get('rank')}"
        process.incarnation = str(node.get("who"))[:8]
        if lost := head.get("lost"):
            notes.append(f"{process.label} had no room for {lost} older spans: record for less long, or give it more")
        if role == "coordinator":
            own, epoch_ns = process.boot, int(head.get("epoch_ns") or 0)
        found.append((node, process))
    if not any(process.spans for _, process in found):
        raise ConfigurationError("no node has recorded anything: was anything trained during the trace?")
    clocks: dict[str, Clock] = {}
    for node, process in found:
        offset, wrong_by = node.get("offset_s"), node.get("error_s")
        if process.boot == own or not isinstance(offset, float | int) or not isinstance(wrong_by, float | int):
            if process.boot != own:
                notes.append(
                    f"{process.label}: its clock was not compared with the coordinator's; its times are its own"
                )
            continue
        known = clocks.get(process.boot)
        if known is None or wrong_by * 1e6 < known.error_us:  # processes of one host share a clock: the surest counts
            clocks[process.boot] = Clock(offset * 1e6, wrong_by * 1e6)
    processes = [process for _, process in found]
    for process in processes:
        if (clock := clocks.get(process.boot)) is not None:
            process.spans = [span.shifted(clock.shift_us) for span in process.spans]
    processes.sort(key=lambda process: process.name)
    return Trace(processes, wires_of(processes), clocks, notes=notes, epoch_us=epoch_ns / 1e3)
