"""What is called behind a machine's door while it works: kernels, codecs and checks, noted while a trace runs.

A door is an attribute that holds what is called. While a recording runs it holds what does the same and is noted;
before and after, what it always held. So a process that records nothing runs no line more than without all this.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from threading import get_ident
from time import monotonic_ns as clock
from typing import Any, Protocol

from zmqps.core.protocol.encoding import CODING, Coding


class Sink(Protocol):
    """Takes spans: `zmqps.trace.ring.Ring`."""

    def span(self, name: str, role: str, begin: int, end: int, kind: str = "X", **facts: Any) -> None:
        """Note one."""


class Door:
    """One attribute of an object, held by a weak reference."""

    def __init__(self, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
        self._owner = weakref.ref(owner)
        self._attribute = attribute
        self._make = make
        self._original: Any = None
        self._is_open = False

    @property
    def is_gone(self) -> bool:
        """Whether there is no such object any more."""
        return self._owner() is None

    def open(self) -> None:
        """Note what goes through it."""
        owner = self._owner()
        if owner is not None and not self._is_open:
            self._original, self._is_open = getattr(owner, self._attribute), True
            setattr(owner, self._attribute, self._make(self._original))

    def close(self) -> None:
        """Have what was there before."""
        owner = self._owner()
        if owner is not None and self._is_open:
            setattr(owner, self._attribute, self._original)
        self._original, self._is_open = None, False


class SwitchedCoding:
    """The door to the codecs, whose functions may be replaced; where a `Coding` goes, it goes."""

    def __init__(self, coding: Coding) -> None:
        self.compress = coding.compress
        self.decompress = coding.decompress


class Doors:
    """The doors of this process, and the recorder behind each machine; two machines in one process have one each."""

    def __init__(self) -> None:
        self._doors: list[Door] = []
        self._sinks: list[Sink] = []
        self._within: dict[int, Sink] = {}  # by thread: whose machine it is in
        self._lock = threading.Lock()

    def add(self, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
        """Add a door; it opens at once if a trace runs."""
        door = Door(owner, attribute, make)
        with self._lock:
            self._doors = [known for known in self._doors if not known.is_gone]
            self._doors.append(door)
            if self._sinks:
                door.open()

    def function(self, name: str, role: str) -> Callable[[Any], Any]:
        """Return what makes of a function one that is noted as a span of this name."""
        return lambda function: None if function is None else partial(self._noted, name, role, function)

    def _noted(self, name: str, role: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        sink = self._within.get(get_ident())
        if sink is None:
            return function(*args, **kwargs)
        begin = clock()
        try:
            return function(*args, **kwargs)
        finally:
            sink.span(name, role, begin, clock())

    def coding(self, coding: Coding = CODING) -> Coding:
        """Return the door to the codecs with its doors."""
        switched: Any = SwitchedCoding(coding)
        self.add(switched, "compress", self.function("encode", "codec"))
        self.add(switched, "decompress", self.function("decode", "codec"))
        found: Coding = switched
        return found

    def shard(self, shard: Any, tables: Iterable[Any]) -> None:
        """Install the doors of a shard: its kernels, those of its tables, and its check of gradients."""
        kernel = self.function("apply", "server")
        self.add(shard.dense.updates, "kernels", lambda kernels: [kernel(one) for one in kernels])
        self.add(shard.dense.finiteness, "all_finite", self.function("check", "server"))
        for table in tables:
            self.add(table, "kernel", partial(NotedKernel, self))

    def start(self, sink: Sink) -> None:
        """A recorder begins."""
        with self._lock:
            self._sinks.append(sink)
            for door in self._doors:
                door.open()

    def stop(self, sink: Sink) -> None:
        """A recorder ends."""
        with self._lock:
            self._sinks = [other for other in self._sinks if other is not sink]
            self._within = {thread: other for thread, other in self._within.items() if other is not sink}
            if not self._sinks:
                for door in self._doors:
                    door.close()

    def within(self, sink: Sink, work: Callable[..., Any], *args: Any) -> Any:
        """Do work of a machine in this thread; what it calls behind these doors is its own."""
        thread = get_ident()
        before = self._within.get(thread)
        self._within[thread] = sink
        try:
            return work(*args)
        finally:
            if before is None:
                self._within.pop(thread, None)
            else:
                self._within[thread] = before


class NotedKernel:
    """A rule for rows whose work is noted."""

    def __init__(self, doors: Doors, kernel: Any) -> None:
        self._kernel = kernel
        self._apply = doors.function("apply", "server")(kernel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, *arguments: Any) -> None:
        """Update rows."""
        self._apply(*arguments)


#: Of this process.
DOORS = Doors()
