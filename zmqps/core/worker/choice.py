"""Which codec a worker's gradients travel in to one shard, where the job leaves that to its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from zmqps.codecs import Auto, parse
from zmqps.core.protocol.encoding import RAW

#: The time of less says more about messages than about bytes.
LEAST_NBYTES = 64 << 10
#: Pushes in one codec before it is judged by their median.
NUM_SAMPLES = 4
#: So many times faster another codec has to be for a change to it, and so many times slower one may be that loses less.
GAIN = 1.2
#: Once it is tried it has to have been so many times faster; or no more than `GAIN` times slower, as expected.
KEPT_GAIN = 1.1
#: What was measured before a change says little after so long.
FORGET_S = 60.0
#: A codec that was tried in vain is tried again after so long, then after twice as long each time, up to the latter;
#: earlier where pushes have become so many times slower.
RETRY_S, LONGEST_RETRY_S, SLOWER = 60.0, 3600.0, 2.0


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is known of one codec."""

    ratio: float  # of the bytes on the wire to those of the values
    times: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_SAMPLES))  # seconds a byte of the values
    at: float = 0.0  # when the last of them was measured
    retry_at: float = 0.0  # it was tried in vain
    retry_s: float = RETRY_S
    in_vain: float = 0.0  # what a byte took in the codec that it was to be better than

    @property
    def time(self) -> float | None:
        """Seconds a byte; None: it is not known."""
        return sorted(self.times)[NUM_SAMPLES // 2] if len(self.times) == NUM_SAMPLES else None


@dataclass(slots=True)
class _Trial:
    """A change that has to show what it was made for."""

    before: str
    time: float  # in the codec before
    most: float  # in the one that is tried


class Choice:
    """Chooses by the time that pushes take from asking to the last answer, all of it: that is what a user waits for.

    What a codec would take that is not in force is what it took a while ago, or what it is expected to take: all that
    is not encoding or decoding is taken for the wire, and as much shorter as there are fewer bytes. That may be wrong,
    as where the server is slow, so a change that does not make pushes faster is taken back.

    Time and what encoding costs are arguments; nothing here measures.

    Parameters
    ----------
    auto
        What is allowed.
    cost
        Seconds that encoding and decoding take for a byte of values, by a codec's text; None: not measured yet.
    """

    def __init__(self, auto: Auto, cost: Callable[[str], float | None]) -> None:
        self.codec = RAW
        self.in_memory = False
        self.changes = 0
        self._cost = cost
        self._known = {text: _Known(ratio=_ratio(text)) for text in (RAW, *auto.allowed)}  # in the order of preference
        self._trial: _Trial | None = None
        self._num_new = 0  # pushes since it was looked at last

    def took(
        self, codec: str, nbytes: int, sent_nbytes: int, seconds: float, now: float, *, in_memory: bool = False
    ) -> None:
        """A push of so many bytes of values, so many on the wire, is answered.

        ``in_memory``: there was no wire between here and the server.
        """
        self.in_memory = in_memory
        if in_memory:
            self._trial = None
            self._change(RAW)
            return
        if codec != self.codec or nbytes < LEAST_NBYTES or seconds <= 0.0:
            return
        known = self._known[codec]
        known.times.append(seconds / nbytes)
        known.ratio, known.at = sent_nbytes / nbytes, now
        self._num_new += 1
        if self._num_new >= NUM_SAMPLES and known.time is not None and len(self._known) > 1:
            self._num_new = 0  # not after each: of many looks at the same noise one would take it for a change
            self._judge(known.time, now)

    def begin_anew(self) -> None:
        """Another server has the shard: nothing is known of the way to it."""
        self._trial = None
        for known in self._known.values():
            known.times.clear()
            known.retry_at, known.retry_s = 0.0, RETRY_S

    def _judge(self, time: float, now: float) -> None:
        if (trial := self._trial) is not None:
            self._trial = None
            if time > trial.most:
                tried = self._known[self.codec]
                tried.retry_at, tried.in_vain = now + tried.retry_s, trial.time
                tried.retry_s = min(2 * tried.retry_s, LONGEST_RETRY_S)
                self._change(trial.before)
                return
            self._known[self.codec].retry_s = RETRY_S
        expected = {text: self._expect(text, time, now) for text in self._known}
        least = min(expected.values())
        best = next(text for text, takes in expected.items() if takes <= least * GAIN)
        if best == self.codec:
            return
        more_exact = list(self._known).index(best) < list(self._known).index(self.codec)
        if more_exact and expected[best] <= time:
            self._try(best, time, time * GAIN)
        elif expected[best] * GAIN < time:
            self._try(best, time, time / KEPT_GAIN)

    def _try(self, text: str, time: float, most: float) -> None:
        self._trial = _Trial(self.codec, time, most)
        self._change(text)

    def _expect(self, text: str, time: float, now: float) -> float:
        """Return what a byte would take in a codec, if it takes ``time`` in the one in force."""
        known = self._known[text]
        if text == self.codec:
            return time
        if now < known.retry_at and time < SLOWER * known.in_vain:
            return float("inf")
        if known.time is not None and now < known.at + FORGET_S:
            return known.time
        cost = self._cost_of(text)
        return float("inf") if cost is None else cost + self._wire(time) * known.ratio

    def _wire(self, time: float) -> float:
        """Return what a byte takes on the wire, if one of the values takes ``time`` in all."""
        return max(0.0, time - (self._cost_of(self.codec) or 0.0)) / self._known[self.codec].ratio

    def _cost_of(self, text: str) -> float | None:
        return 0.0 if text == RAW else self._cost(text)

    def _change(self, text: str) -> None:
        if text == self.codec:
            return
        self.codec = text
        self.changes += 1
        self._num_new = 0
        self._known[text].times.clear()

    def __str__(self) -> str:
        """The codec in force, and why."""
        if len(self._known) == 1:
            return f"{RAW} (nothing else is allowed: auto:bf16,int8)"
        if self.in_memory:
            return f"{RAW} (through memory)"
        time = self._known[self.codec].time
        whys = ["not measured yet"]
        if time is not None:
            wire = self._wire(time)
            whys = [f"wire {_speed(1.0 / wire)}" if wire > 0.0 else "no time on the wire"]
        whys += [f"{text} {_speed(1.0 / cost)}" for text in self._known if text != RAW and (cost := self._cost(text))]
        return f"{self.codec} ({', '.join(whys)})"


class Timing:
    """How long the pushes to one shard take.

    Parameters
    ----------
    choice
        Who is told.
    in_memory
        Whether what is sent there goes through memory now.
    """

    #: Pushes under way whose time is taken; what has failed stays until there are so many others.
    MOST = 64

    def __init__(self, choice: Choice, in_memory: Callable[[], bool] = lambda: False) -> None:
        self.choice = choice
        self._in_memory = in_memory
        self._pushes: dict[object, _Push] = {}
        self._free_at = 0.0  # when the last push was answered: what has left before had to wait until then

    def expect(self, push: object, nbytes: int, num_messages: int) -> None:
        """A push of so many messages is queued, in the codec of now."""
        if len(self._pushes) == self.MOST:
            del self._pushes[next(iter(self._pushes))]
        self._pushes[push] = _Push(codec=self.choice.codec, nbytes=nbytes, remaining=num_messages)

    def left(self, push: object, nbytes: int, now: float) -> None:
        """A message of it leaves, of so many bytes as it travels."""
        if (found := self._pushes.get(push)) is not None:
            found.began_at = now if found.began_at is None else found.began_at
            found.sent_nbytes += nbytes

    def answered(self, push: object, now: float) -> None:
        """A message of it is answered."""
        if (found := self._pushes.get(push)) is None:
            return
        found.remaining -= 1
        if found.remaining or found.began_at is None:
            return
        del self._pushes[push]
        seconds, self._free_at = now - max(found.began_at, self._free_at), now
        self.choice.took(found.codec, found.nbytes, found.sent_nbytes, seconds, now, in_memory=self._in_memory())

    def spoil(self) -> None:
        """What is under way is sent again, or waits for something else: its time says nothing."""
        self._pushes.clear()


@dataclass(slots=True, kw_only=True)
class _Push:
    """A push under way."""

    codec: str
    nbytes: int
    remaining: int
    began_at: float | None = None
    sent_nbytes: int = 0


def _ratio(text: str) -> float:
    """Return the bytes on the wire for one of values, as long as it is not measured."""
    size = LEAST_NBYTES // 4
    return parse(text).encoded_nbytes(size, np.float32) / (4 * size)


def _speed(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB/s" if nbytes >= 1e7 else f"{nbytes / 1e6:.2g} MB/s"
