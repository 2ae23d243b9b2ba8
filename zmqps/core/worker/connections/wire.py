"""The speed of the wire to one server, as measured by its traffic, and how much may be in flight."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from zmqps.core.node.handshake import Handshake
from zmqps.core.protocol.message import WINDOW_NBYTES

#: Fewer bytes measure round trips and busy nodes, not the wire.
SAMPLE_NBYTES = 256 << 10
#: A message with no more bytes takes about a round trip.
SMALL_NBYTES = 16 << 10
#: With permanent traffic, the speed is noted this often.
PERIOD_S = 1.0
#: The rest, when all is answered, is used if it is not too short: some answers come together.
LEAST_PERIOD_S = 0.25
#: The fastest of this many last notes counts: each is less than the wire can carry, none is more.
NUM_SAMPLES = 16
#: Nodes may be busy for this long at times; the wire should be full meanwhile.
BUSY_S = 0.02
#: At least this many requests are in flight: one is sent, one travels, one is processed, and its answer travels.
NUM_REQUESTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSpeed:
    """What was measured of the wire to one server; a frozen copy.

    It is the rate of pushes and pulls, with the work at both ends, so the wire is at least this fast. Servers on this
    host whose arrays do not travel over sockets are measured in the same way, and look like a very fast wire.

    Attributes
    ----------
    out_bytes_per_s, in_bytes_per_s
        Encoded payload bytes to the server and back; 0 as long as there was too little traffic.
    round_trip_s
        The shortest time from a request to its answer, including the server's work; 0 before the first.
    window_nbytes
        How many bytes of requests may be unanswered, before encoding.
    """

    out_bytes_per_s: float = 0.0
    in_bytes_per_s: float = 0.0
    round_trip_s: float = 0.0
    window_nbytes: int = WINDOW_NBYTES

    @property
    def bytes_per_s(self) -> float:
        """Both ways together."""
        return self.out_bytes_per_s + self.in_bytes_per_s

    def counters(self) -> dict[str, float]:
        """Return counters for the status, rounded to their precision."""
        return {
            "wire_out_mb_s": round(self.out_bytes_per_s / 1e6, 1),
            "wire_in_mb_s": round(self.in_bytes_per_s / 1e6, 1),
            "wire_round_trip_ms": round(1000 * self.round_trip_s, 2),
            "window_nbytes": self.window_nbytes,
        }


class Wire:
    """Measures the wire to one server, without sending anything for it.

    From a request sent when none is unanswered, until none is again, something is always in flight. The first round
    trip of this time carries nothing that counts; in the rest this many bytes were carried. If the next request waits
    for an answer this shows less than the wire can carry, so the fastest of several such times counts. So a window of
    twice the bytes of a round trip grows to the capacity of the wire.
    """

    def __init__(self) -> None:
        self.round_trip_s = 0.0
        self.window_nbytes = WINDOW_NBYTES  # for the last request
        self.sample_nbytes = SAMPLE_NBYTES
        self._samples = tuple(deque[float](maxlen=NUM_SAMPLES) for _ in range(3))
        self._fastest = [0.0, 0.0, 0.0]  # bytes a second: out, in, and of requests before encoding
        self._carried = [0, 0, 0]
        self.since: float | None = None  # something is in flight; None: nothing is
        self._is_first = False  # nothing has been answered since then
        self._was_idle = False  # nothing was in flight before
        self._latency_s = 0.0  # nothing was carried during this time

    @property
    def speed(self) -> WireSpeed:
        """The measurements."""
        out, back, _ = self._fastest
        return WireSpeed(
            out_bytes_per_s=out, in_bytes_per_s=back, round_trip_s=self.round_trip_s, window_nbytes=self.window_nbytes
        )

    def begins(self, now: float) -> None:
        """A request is sent, and no other that counts is unanswered."""
        self.since = now
        self._is_first = self._was_idle = True

    def greeted(self, handshake: Handshake, now: float) -> None:
        """The server welcomes us; before `Handshake.on_welcome`."""
        if handshake.welcome is None:  # it may have come before the event of the connection
            self.answered_within(now - handshake.said_at)

    def answered_within(self, seconds: float) -> None:
        """A request was answered after this long, and no earlier one sooner."""
        self.round_trip_s = min(seconds, self.round_trip_s or seconds)

    def answered(self, now: float, nbytes: tuple[int, int, int], *, is_last: bool) -> None:
        """A request was answered since it `begins`; ``is_last``: nothing else is unanswered.

        ``nbytes`` are those of its payload, of its answer's, and of the request before it was encoded.
        """
        assert self.since is not None
        seconds = now - self.since
        if self._is_first:
            self._is_first = False
            if self.round_trip_s or nbytes[0] + nbytes[1] <= SMALL_NBYTES:
                self.answered_within(seconds)
            self._latency_s = min(self.round_trip_s, seconds / 2)  # its carried bytes must not be subtracted
        for way in range(3):
            self._carried[way] += nbytes[way]
        if is_last or seconds >= PERIOD_S:
            if self._was_idle or seconds >= LEAST_PERIOD_S:
                self._note(seconds - self._latency_s)
            self.since, self._was_idle = None if is_last else now, False
            self._carried, self._latency_s = [0, 0, 0], 0.0

    def _note(self, seconds: float) -> None:
        if seconds <= 0:  # the clock is too coarse
            return
        for way, nbytes in enumerate(self._carried):
            if nbytes >= self.sample_nbytes:
                samples = self._samples[way]
                samples.append(nbytes / seconds)
                self._fastest[way] = max(samples)

    def window(self, nbytes: int) -> int:
        """Return how many bytes may be in flight together with a request of ``nbytes``."""
        fastest = self._fastest[2]
        if fastest and self.round_trip_s:
            needed = fastest * (2 * self.round_trip_s + BUSY_S)
            self.window_nbytes = min(WINDOW_NBYTES, max(NUM_REQUESTS * nbytes, int(needed)))
        return self.window_nbytes
