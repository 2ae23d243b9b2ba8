"""What a script logs, until the coordinator has it: bounded, without blocking the script, sent in portions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import count, islice
from operator import index
from typing import Any, NamedTuple

from zmqps import checks
from zmqps.core.node.member import Member, MemberPart
from zmqps.core.protocol.events import COORDINATOR, Action, Send
from zmqps.core.protocol.message import Entry
from zmqps.core.protocol.messages import Note, Noted
from zmqps.core.protocol.messages.notes import (
    ENTRY_NBYTES,
    MAX_ENTRIES,
    MAX_ENTRIES_NBYTES,
    MAX_STEP,
    MAX_VALUE_NAME_CHARS,
    MAX_VALUES,
    is_value_name,
    value_nbytes,
)
from zmqps.errors import ConfigurationError

#: Calls that may wait for the background thread, which checks at least with each heartbeat. With `MAX_VALUES` each they
#: take 6 MB, and seldom more than 0.3.
MOST_NEW = 1024
#: Bytes of taken calls, in wire form: with two values per call, enough for an hour without the coordinator.
MOST_KEPT_NBYTES = 1 << 20
#: Names known to be valid; if a script makes up new ones forever, they are checked again.
MOST_NAMES = 4096


class Kept(NamedTuple):
    """One call: its number, its time, its step, its values, and their bytes."""

    number: int
    at: float
    step: int | None
    values: Mapping[str, float]
    nbytes: int


class Notebook:
    """The unconfirmed calls of a script; one for all lives of a worker.

    The script's threads call `add`; the thread that carries messages calls everything else. Neither waits for the
    other: the first appends to one end of a deque, the second takes from the other.
    """

    def __init__(self, most_new: int = MOST_NEW, most_nbytes: int = MOST_KEPT_NBYTES) -> None:
        # calls that are lost, because there was no room for them, or because a life that had sent them ended without
        # an answer
        self.num_dropped = 0
        self._most_nbytes = most_nbytes
        self._new: deque[tuple[int, float, int | None, Mapping[str, float], int]] = deque(maxlen=most_new)
        self._calls = count()
        self._names: dict[str, int] = {}  # valid names -> bytes of a value
        self._kept: deque[Kept] = deque()
        self._nbytes = 0
        self._num_kept = 0  # so far
        self._num_lost = 0  # of those not stored
        self._num_sent = 0  # at the start of the stored ones
        self._base = 0  # the number of the first call of this life

    # --- the script's threads ------------------------------------------------------------------

    def add(self, at: float, values: Mapping[str, Any], step: Any = None) -> None:
        """Store values; if there is no more room, the oldest are dropped.

        Raises
        ------
        ConfigurationError
            They are not numbers by name, or ``step`` is not a whole number.
        """
        if type(values) is not dict and not isinstance(values, Mapping):
            checks.refuse("values", "numbers by name, say {'loss': 0.5}", values)
        names, nbytes, kept = self._names, ENTRY_NBYTES, {}
        for name, value in values.items():
            nbytes += names.get(name) or self._check(name)
            kept[name] = value if type(value) is float else _number(name, value)
        if not kept or len(kept) > MAX_VALUES:
            raise ConfigurationError(f"log takes 1 to {MAX_VALUES} values at a time, got {len(kept)}")
        if step is not None and not (type(step) is int and 0 <= step <= MAX_STEP):
            step = _step(step)
        self._new.append((next(self._calls), at, step, kept, nbytes))

    def _check(self, name: Any) -> int:
        if not is_value_name(name):
            checks.refuse("the name of a value", f"a printable string of 1 to {MAX_VALUE_NAME_CHARS} characters", name)
        if len(self._names) >= MOST_NAMES:
            self._names.clear()
        self._names[name] = nbytes = value_nbytes(name)
        return nbytes

    # --- the thread that carries messages ------------------------------------------------------

    @property
    def num_logged(self) -> int:
        """The number of calls taken so far."""
        return self._num_kept + self._num_lost

    def __len__(self) -> int:
        """Return the number of stored, unconfirmed calls."""
        return len(self._kept)

    def begin(self) -> None:
        """A life begins: calls are numbered again; what the previous life had sent without an answer is given up."""
        self.confirm(self._kept[self._num_sent - 1].number + 1 - self._base if self._num_sent else 0, lost=True)
        self._base = self._kept[0].number if self._kept else self.num_logged

    def take(self) -> bool:
        """Take the script's new calls; return whether there were any."""
        new, taken = self._new, []
        while new:
            try:
                taken.append(new.popleft())
            except IndexError:  # a script's thread has dropped it for another call
                break
        if not taken:
            return False
        # numbers are in order unless threads log simultaneously; missing ones were dropped
        ends = max(max(number for number, *_ in taken) + 1, self.num_logged + len(taken))
        lost = ends - self.num_logged - len(taken)
        self._num_lost += lost
        self.num_dropped += lost
        for _, at, step, values, nbytes in taken:
            self._kept.append(Kept(self.num_logged, at, step, values, nbytes))
            self._num_kept += 1
            self._nbytes += nbytes
        while self._nbytes > self._most_nbytes and len(self._kept) > self._num_sent:
            self._drop()
        return True

    def _drop(self) -> None:
        """Drop the first call that is not in flight."""
        oldest = self._kept[self._num_sent]
        del self._kept[self._num_sent]
        self._nbytes -= oldest.nbytes
        self.num_dropped += 1

    def send(self, now: float) -> tuple[int, tuple[Entry, ...]]:
        """Return the number of the next call to send, or resend, and as many as fit into a message."""
        self._num_sent = self._num_sent or self._some(0)
        return self._entries(0, self._num_sent, now)

    def rest(self, now: float) -> list[tuple[int, tuple[Entry, ...]]]:
        """Return all unconfirmed calls, message by message; none of them will be resent."""
        found, start = [], 0
        while start < len(self._kept):
            size = self._some(start)
            found.append(self._entries(start, size, now))
            start += size
        return found

    def _some(self, start: int) -> int:
        """Return how many calls from here on make a message: their numbers are consecutive."""
        nbytes = size = 0
        first = self._kept[start].number if start < len(self._kept) else 0
        for kept in islice(self._kept, start, start + MAX_ENTRIES):
            nbytes += kept.nbytes
            if size and (kept.number != first + size or nbytes > MAX_ENTRIES_NBYTES):
                break
            size += 1
        return size

    def _entries(self, start: int, size: int, now: float) -> tuple[int, tuple[Entry, ...]]:
        some = list(islice(self._kept, start, start + size))
        first = some[0].number - self._base if some else 0
        return first, tuple([(max(0.0, now - kept.at), kept.step, kept.values) for kept in some])

    def confirm(self, upto: int, *, lost: bool = False) -> None:
        """The coordinator has all below this number, or it will remain unknown whether it has."""
        while self._kept and self._kept[0].number - self._base < upto:
            self._nbytes -= self._kept.popleft().nbytes
            self._num_sent = max(0, self._num_sent - 1)
            self.num_dropped += lost

    def validate(self) -> None:
        """Assert the invariants."""
        numbers = [kept.number for kept in self._kept]
        assert numbers == sorted(set(numbers))
        assert all(self._base <= number < self.num_logged for number in numbers)
        assert self._nbytes == sum(kept.nbytes for kept in self._kept)
        assert 0 <= self._num_sent <= len(self._kept)
        assert self._num_sent <= MAX_ENTRIES


def _number(name: str, value: Any) -> float:
    """Return a number of Python, or of any library's scalars and arrays of one element without a shape."""
    if not isinstance(value, str | bytes | bytearray) and getattr(value, "ndim", 0) == 0:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            pass
    checks.refuse(f"the value {name!r}", "one number", value)


def _step(step: Any) -> int:
    try:
        whole = index(step)
    except TypeError:
        whole = -1
    if isinstance(step, bool) or not 0 <= whole <= MAX_STEP:
        checks.refuse("step", "a whole number of at least 0, or None", step)
    return whole


#: The delay of the next message after an answer: two a second are enough to look at.
PAUSE_S = 0.5
#: … and if more is stored than fits into one.
SHORT_PAUSE_S = 0.1
#: An unanswered message is resent after this long: a coordinator may have been too busy to take it.
RETRY_S = 3.0
#: The longest a finishing worker waits until the coordinator has what it has logged.
LAST_S = 2.0


class NoteSender(MemberPart):
    """One life's path to the coordinator for what its script logs.

    One message is in flight at a time. No timer runs while nothing is logged: the first check after a pause is with a
    heartbeat.
    """

    def __init__(self, notebook: Notebook, member: Member) -> None:
        self.notebook = notebook
        self._member = member
        self._is_out = False  # a message is in flight
        self._not_before = 0.0
        self._gives_up_at: float | None = None  # the stored calls, because the worker has finished
        notebook.begin()

    @property
    def _reachable(self) -> bool:
        return self._member.joined and not self._member.unsure

    def on_deadline(self, now: float) -> list[Action]:
        """Check what the script has logged, and send it if it is time."""
        self.notebook.take()
        actions: list[Action] = []
        if not self.notebook or not self._reachable:
            self.due = None
        else:
            if now >= self._not_before:
                self._is_out, self._not_before = True, now + RETRY_S
                actions = [Send(COORDINATOR, Note(*self.notebook.send(now)))]
            self.due = self._not_before
            if self._gives_up_at is not None and now < self._gives_up_at:
                self.due = min(self.due, self._gives_up_at)
        self._member.set_due()
        return actions

    def end(self) -> None:
        """Stop sending."""
        self.due = None

    def noted(self, message: Noted, now: float) -> list[Action]:
        """The coordinator has what was sent."""
        before = len(self.notebook)
        self.notebook.confirm(message.upto)
        if not self._is_out or len(self.notebook) == before:
            return []  # a repeated answer
        self._is_out = False
        if self._gives_up_at is not None:
            self._not_before = now
            return self.on_deadline(now)
        self.due = self._not_before = now + (SHORT_PAUSE_S if self.notebook else PAUSE_S)
        self._member.set_due()
        return []

    def again(self, now: float) -> list[Action]:
        """Resend what may be lost with a connection, or with the earlier coordinator."""
        if self._is_out:
            self._not_before = now
        return self.on_deadline(now)

    def finish(self, now: float) -> list[Action]:
        """No more is logged: send everything, without pauses."""
        self._gives_up_at = now + LAST_S
        if not self._is_out:
            self._not_before = now
        return self.on_deadline(now)

    def waits(self, now: float) -> bool:
        """Whether a finishing worker waits for an answer to what it has logged."""
        return bool(self.notebook) and self._reachable and self._gives_up_at is not None and now < self._gives_up_at

    def last(self, now: float) -> list[Action]:
        """Send everything without waiting for an answer, before a goodbye."""
        self.notebook.take()
        if not self._reachable:
            return []
        return [Send(COORDINATOR, Note(*some)) for some in self.notebook.rest(now)]

    def validate(self) -> None:
        """Assert the invariants."""
        self.notebook.validate()
