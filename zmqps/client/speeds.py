"""How fast this machine encodes and decodes, taken once where a job leaves to its workers how gradients travel."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from zmqps.client.beside import TwoThreads
from zmqps.codecs import Auto, Codec, parse
from zmqps.core.protocol.encoding import CODING, Coding

#: Bytes of what is encoded: a quarter of a slice, more than a fast cache holds.
SAMPLE_NBYTES = 1 << 20
#: The fastest counts: the others were interrupted.
ROUNDS = 3


class Speeds:
    """What codecs cost here; one thread measures, others look it up."""

    def __init__(self) -> None:
        self._costs: dict[str, float] = {}

    def cost(self, codec: str) -> float | None:
        """Return the seconds that encoding and decoding take for a byte of values; None: not measured yet.

        Decoding is the server's, whose machine is taken for one like this.
        """
        return self._costs.get(codec)

    @property
    def coding(self) -> Coding:
        """The door to the codecs for a background thread, which has nothing else to do that a push waits for.

        So another thread encodes half of it.
        """
        return Coding(compress=partial(CODING.compress, spread=TwoThreads()), cost=self.cost)

    def measure(self, auto: Auto) -> None:
        """Take the time of what is allowed and not known; it takes some milliseconds, and more at first."""
        for text in auto.allowed:
            if text not in self._costs:
                self._costs[text] = _cost(parse(text))


def _cost(codec: Codec) -> float:
    codec.warm_up(np.float32)
    values = np.random.default_rng(0).standard_normal(SAMPLE_NBYTES // 4, np.float32)
    residual = np.zeros_like(values) if codec.error_feedback else None
    spread, times = TwoThreads(), list[float]()
    for seed in range(ROUNDS):
        began_at = time.perf_counter()
        blob = codec.encode(values, residual, seed=seed, spread=spread)
        codec.decode(blob, values.size, values.dtype)
        times.append(time.perf_counter() - began_at)
    return min(times) / values.nbytes
