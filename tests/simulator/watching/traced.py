"""Clusters that are traced while they train, and what must hold of the traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar
from zlib import crc32

from tests.simulator.engine import Node
from tests.simulator.network import Faults
from tests.simulator.simulation import END_KEY, Simulation
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.node.inquiry import Inquiry
from zmqps.core.node.member import Identity
from zmqps.core.node.tracing import NodeTracing, TraceKey, Tracer, trace
from zmqps.core.protocol.message import MAX_BLOB_NBYTES
from zmqps.core.protocol.messages.tracing import TraceState

S = TypeVar("S")

#: What is asked for: seconds, and pushes of each worker.
SECONDS = 0.3, 3.0
STEPS = 6
RING_NBYTES = 1 << 20
#: A node that is not stopped ends by itself so soon after its time.
LATE_S = 0.1
#: Where nothing is lost an operator has a trace so soon after its end; where connections break, this long.
SOON_S, EVENTUALLY_S = 5.0, 40.0

TRACES = {
    "traces": Faults(delay=0.004, trace=1.0),
    "traces-breaks": Faults(delay=0.004, trace=1.0, loss=0.02),
    "traces-restarts": Faults(delay=0.005, trace=1.5, crash=0.2, coordinator_crash=0.1, server_crash=0.05),
    "traces-freezes": Faults(delay=0.004, trace=1.0, freeze=0.4),
    "traces-everything": Faults(
        delay=0.005, loss=0.002, duplication=0.05, reordering=0.05, partition=0.08, partition_s=6.0, crash=0.1,
        stop=0.1, trace=1.0,
    ),
}  # fmt: skip


class FakeRecorder:
    """Records nothing, but for how long, and has bytes of its own to hand out."""

    def __init__(self, simulation: Traced, name: str) -> None:
        self.is_on = False
        self.began_at = 0.0
        self.made: list[bytes] = []  # what it had each time
        self.lost = 0
        self._simulation = simulation
        self._name = name
        self._data = b""

    def start(self, nbytes: int) -> None:
        """Begin."""
        assert not self.is_on, f"{self._name} is told to record while it does"
        assert 0 < nbytes <= RING_NBYTES
        self.is_on, self._data = True, b""
        self.began_at = self._simulation.time_of(self._simulation.nodes[self._name])

    def stop(self) -> None:
        """End; what was recorded is a few pieces."""
        assert self.is_on, f"{self._name} is told to end what it has ended"
        self.is_on = False
        number = crc32(f"{self._name} {self._simulation.now!r}".encode())
        nbytes = number % (2 * MAX_BLOB_NBYTES)
        self._data = (number.to_bytes(4, "little") * (nbytes // 4 + 1))[:nbytes]
        self.made.append(self._data)

    def forget(self) -> None:
        """Have nothing any more."""
        assert not self.is_on
        self._data = b""

    def time(self) -> float:
        """Return the time that spans have: it goes on while the node stands still."""
        return self._simulation.now

    @property
    def nbytes(self) -> int:
        """How much there is."""
        return len(self._data)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a piece."""
        return self._data[offset : offset + nbytes]


class Traced(Simulation):
    """A run in which operators request traces, some of which others end."""

    def __init__(self, seed: int, *args: Any, **kwargs: Any) -> None:
        self.recorders: dict[bytes, FakeRecorder] = {}  # by incarnation
        self._tracing: dict[bytes, NodeTracing] = {}  # likewise
        self.num_fetched = 0
        self._seconds: dict[int, float] = {}  # by the number of a trace: for how long it was asked for
        self._tracers: dict[str, tuple[float, Tracer]] = {}  # until when each is to be done
        super().__init__(seed, *args, **kwargs)
        self._schedule()

    def _schedule(self) -> None:
        self.at(self.now + self.rng.expovariate(self.faults.trace), self._ask)

    def _ask(self) -> None:
        if self.network.quiet or self.finished:
            return
        self._schedule()
        rng, name = self.rng, f"tracer-{len(self._tracers)}"
        seconds, stop = rng.uniform(*SECONDS), rng.random() < 0.3
        steps = STEPS if rng.random() < 0.3 else 0
        start = None if stop else (rng.choice(["", self.training.name]), seconds, steps, RING_NBYTES)
        nonce = rng.randbytes(16)
        self._seconds[int.from_bytes(nonce[:8], "little")] = seconds
        machine = Tracer("sim://coordinator", TraceKey(END_KEY, nonce), start, stop=stop)
        identity = Identity(role="tracer", incarnation=rng.randbytes(16), name=name, host="simulated", pid=0)
        smooth = not (self.faults.may_lose or self.faults.duplication)
        self._tracers[name] = self.now + SECONDS[1] + (SOON_S if smooth else EVENTUALLY_S), machine
        self.start(Node(name=name, role="tracer", identity=identity, machine=machine))

    def start(self, node: Node) -> Node:
        """Let a node begin, with something to record with."""
        recorder = FakeRecorder(self, node.name)
        self.recorders[node.identity.incarnation] = recorder
        machine = node.machine
        if isinstance(machine, CoordinatorMachine):
            machine.traces.recorder = recorder
        elif not isinstance(machine, (Inquiry, Tracer)):
            self._tracing[node.identity.incarnation] = trace(machine.member, recorder)
        return super().start(node)

    def check(self, node: Node) -> None:
        """Assert what must hold of traces, besides the rest."""
        if isinstance(node.machine, Tracer):
            node.machine.validate()
            return
        super().check(node)
        if isinstance(node.machine, Inquiry):
            return
        if not isinstance(node.machine, CoordinatorMachine):
            if (known := self._tracing[node.identity.incarnation].samples.offset) is not None:
                wrong = abs(known.offset_s)  # all clocks of a simulation are one
                assert wrong <= known.error_s + 1e-9, f"{node.name} is {wrong} s wrong about a clock it knows better"
        for other in self.nodes.values():  # whether anything happens to them or not
            if other.alive and not isinstance(other.machine, (Inquiry, Tracer)):
                self._check_over(other)
        if not (self.faults.may_lose or self.faults.duplication) or self.faults.loss == self._only_losses:
            for name, (until, tracer) in self._tracers.items():
                done = not self.nodes[name].alive
                assert done or self.now <= until, f"{name} still waits for its trace: {tracer.nodes}"

    def _check_over(self, node: Node) -> None:
        """Assert that a node records while its machine says so, and no longer than it was asked to."""
        machine, recorder = node.machine, self.recorders[node.identity.incarnation]
        assert not isinstance(machine, (Inquiry, Tracer))
        tracing = self._tracing.get(node.identity.incarnation)  # None: it is the coordinator
        traces = machine.traces if isinstance(machine, CoordinatorMachine) else tracing
        assert traces is not None
        assert recorder.is_on == (traces.state == TraceState.ON)
        over_at = recorder.began_at + self._seconds.get(traces.number, 0.0)
        is_over = self.time_of(node) > over_at + LATE_S
        ready = max(node.stopped_until, node.busy_until) + LATE_S
        assert not recorder.is_on or not is_over or self.now <= ready, (
            f"{node.name} records longer than it was asked to"
        )

    @property
    def _only_losses(self) -> float:
        """How often connections break, if nothing worse happens; else less than never."""
        f = self.faults
        worse = f.crash, f.stop, f.freeze, f.partition, f.coordinator_crash, f.server_crash, f.duplication
        return -1.0 if any(worse) else f.loss

    def ended(self, node: Node) -> None:
        """Check a fetched trace."""
        if not isinstance(node.machine, Tracer):
            return super().ended(node)
        tracer = node.machine
        if tracer.error is None and node.exit is not None:
            for who, data in tracer.recordings.data.items():
                made = self.recorders[bytes.fromhex(who)].made
                assert bytes(data) in made, f"{node.name} was handed what the node that it is of has not recorded"
                self.num_fetched += 1
        return None


def traced_scenarios(found: Mapping[str, S]) -> Mapping[str, S]:
    """Return scenarios in which traces are taken, made of those in which servers come and go."""
    return {
        f"{mode}-{kind}": replace(found[f"{mode}-scales"], faults=faults)  # type: ignore[type-var]
        for kind, faults in TRACES.items()
        for mode in ("async", "sync")
    }
