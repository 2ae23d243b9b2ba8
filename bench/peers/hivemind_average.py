"""hivemind: peers that find each other through a DHT and average their gradients, each part at one of them.

Each peer's averager and DHT are processes of their own, as hivemind has them. The group for the next step is being
formed while this one is under way, as in hivemind.Optimizer; what is measured begins when the gradients are there.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage

from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work, serve

TIMEOUT = 120.0
#: Seconds for the peers of a group to find each other; they go on as soon as all have.
MATCHMAKING_S = 5.0
HERE = ["/ip4/127.0.0.1/tcp/0"]


class Member:
    """One peer: its averager, and its copy of the model."""

    def __init__(self, work: Work, dht: hivemind.DHT) -> None:
        self._gradients = [torch.full(shape, GRADIENT_SCALE) for shape in work.shapes.values()]
        self._parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in work.shapes.values()]
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient.clone()
        self.averager = DecentralizedAverager(
            [torch.zeros_like(gradient) for gradient in self._gradients],
            dht=dht,
            prefix="bench",
            start=True,
            target_group_size=work.workers,
            min_matchmaking_time=MATCHMAKING_S,
            request_timeout=MATCHMAKING_S / 2,
        )
        optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self._optimizer = optimizers[work.optimizer](self._parameters, lr=LEARNING_RATE, fused=True)

    def step(self, group: hivemind.StepControl) -> None:
        """Average the gradients within a group, and apply them."""
        with self.averager.get_tensors() as averaged:
            torch._foreach_copy_(averaged, self._gradients)
        group.allow_allreduce()
        group.result(TIMEOUT)
        with self.averager.get_tensors() as averaged:
            torch._foreach_copy_([parameter.grad for parameter in self._parameters], averaged)
        self._optimizer.step()


class Hivemind:
    """As many peers as a parameter server has workers."""

    def __init__(self, work: Work) -> None:
        self._stack = ExitStack()
        first = self._dht([])
        others = [self._dht(first.get_visible_maddrs()) for _ in range(work.workers - 1)]
        self._members = [Member(work, dht) for dht in (first, *others)]
        for member in self._members:
            self._stack.callback(member.averager.shutdown)
        self._threads = self._stack.enter_context(ThreadPoolExecutor(len(self._members)))
        self._groups = self._gather()

    def _dht(self, known: list[hivemind.p2p.multiaddr.Multiaddr]) -> hivemind.DHT:
        dht = hivemind.DHT(start=True, host_maddrs=HERE, initial_peers=known)
        self._stack.callback(dht.shutdown)
        return dht

    def _gather(self) -> list[hivemind.StepControl]:
        """Let the peers form a group."""
        groups = [m.averager.step(wait=False, require_trigger=True, timeout=TIMEOUT) for m in self._members]
        ends_at = time.monotonic() + TIMEOUT
        while any(group.stage in (AveragingStage.IDLE, AveragingStage.LOOKING_FOR_GROUP) for group in groups):
            if time.monotonic() > ends_at:
                raise TimeoutError("hivemind's peers have not found each other")
            time.sleep(0.01)  # hivemind tells of it in no other way
        return groups

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step, of every peer."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()

            def step(member: Member, group: hivemind.StepControl) -> float:
                member.step(group)
                return time.perf_counter() - started  # noqa: B023  (called in this turn)

            seconds += list(self._threads.map(step, self._members, self._groups))
            self._groups = self._gather()
        return seconds

    def close(self) -> None:
        """End the processes."""
        for group in self._groups:
            group.cancel()
        self._stack.close()


if __name__ == "__main__":
    serve(Hivemind)
