"""A host group in simulated time: members that are killed, stopped and away, and leaders that follow each other.

There is one host with some workers, one worker of another host, and servers that only count: which gradients were
applied in which push, and how many steps are complete. The rest of the cluster has simulations of its own.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import count
from random import Random

from tests.simulator.members.host_processes import Connection, Group, Process
from tests.simulator.members.sleepers import LATE_S, slept_s
from tests.simulator.network import Faults
from tests.simulator.simulation import Report, SimulationError
from zmqps.combine.group import GroupMachine
from zmqps.combine.messages import (
    Alive,
    Alone,
    Away,
    CloseConnection,
    ConnectionEnded,
    Done,
    Dropped,
    Failed,
    Fetched,
    FetchValues,
    Got,
    Heard,
    Here,
    HostAction,
    HostEvent,
    HostGradients,
    HostMessage,
    HostValues,
    Joined,
    JoinGroup,
    Pushing,
    PushRound,
    RoundPushed,
    Tell,
    Want,
)
from zmqps.core.node.awake import LOOK_S, SLACK_S
from zmqps.errors import DeadlineError

#: Seconds between signs of life, and of silence after which no worker waits any more.
INTERVAL, TIMEOUT = 0.5, 3.0
#: Steps of each worker, and seconds that computing a gradient takes on average.
STEPS, COMPUTE_S = 12, 0.3
#: How often a step is followed by a barrier, in which no round waits, and how often a push fails.
AWAY, FAILS = 0.1, 0.05
#: After so many seconds no worker is stopped any more.
CALM_S = 60.0
#: After so many a worker hangs.
LIMIT_S = 300.0

Token = tuple[int, int]  # a worker and a step of its


class HostGroups:
    """One run; everything random in it comes from ``seed``.

    Parameters
    ----------
    seed
        Of the random numbers.
    mode
        Of the job: ``sync`` or ``async``.
    workers
        Of the host.
    faults
        ``delay``, ``crash``, ``stop``, ``stop_s`` and ``freeze`` count.
    make
        Makes the machine that is tried.
    """

    def __init__(
        self, seed: int, mode: str, workers: int, faults: Faults, make: Callable[..., GroupMachine] = GroupMachine
    ) -> None:
        self.seed, self.mode, self._faults, self._make = seed, mode, faults, make
        self._rng = Random(f"host {seed}")
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.processes = [Process(number=number) for number in range(workers)]
        self._group: Group | None = None  # that looking workers find
        self.applied: Counter[Token] = Counter()
        self.acknowledged: set[Token] = set()
        self.pushes = 0
        self.version = 0
        self._arrived: dict[int, set[int]] = {}
        self._outside = 0  # steps that the other host's worker has completed
        self._sleeping: deque[tuple[int, Callable[[], None]]] = deque()  # the waiters for a version
        self.outcomes: Counter[str] = Counter()
        self._messages = 0
        self._trace: deque[str] = deque(maxlen=60)
        self._digest = 0

    # --- time ---------------------------------------------------------------------------------

    def run(self) -> Report:
        """Run to the end; raise `SimulationError` where something does not hold."""
        for process in self.processes:
            self._in(self._rng.random(), lambda p=process: self._compute(p))  # type: ignore[misc]
            process.clock.look(self.now, math.inf)
            self._fail_some(process)
        if self._faults.freeze:
            self._in(self._rng.expovariate(self._faults.freeze), self._freeze_some)
        self._in(COMPUTE_S, self._outside_step)
        handled = 0
        try:
            while any(process.alive and process.steps < STEPS for process in self.processes):
                assert self._events, "no worker does anything any more"
                self.now, _, event = heapq.heappop(self._events)
                assert self.now < LIMIT_S, f"workers hang: {[(p.number, p.steps, p.doing) for p in self.processes]}"
                event()
                handled += 1
            lost = [token for token in self.acknowledged if not self.applied[token]]
            assert not lost, f"acknowledged, and in no push: {lost}"
        except AssertionError as error:
            story = "\n".join(self._trace)
            raise SimulationError(f"seed {self.seed}, {self.now:.3f} s: {error}\n{story}") from error
        return Report(
            seed=self.seed, seconds=self.now, steps=sum(p.steps for p in self.processes), events=handled,
            messages=self._messages, nbytes=0, lost=0, outcomes=dict(self.outcomes), coordinator_messages=0,
            training_s=self.now, digest=self._digest,
        )  # fmt: skip

    def trace(self) -> list[str]:
        """Return the last events."""
        return list(self._trace)

    def _in(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _of(self, process: Process, seconds: float, event: Callable[[], None]) -> None:
        """Let a process do something, later if it is stopped, and not if it is dead."""

        def happen() -> None:
            if process.alive and process.stopped_until > self.now:
                self._of(process, process.stopped_until - self.now, event)
            elif process.alive:
                event()

        self._in(seconds, happen)

    def _delay(self) -> float:
        return self._rng.expovariate(1 / max(self._faults.delay, 1e-4))

    def _note(self, text: str) -> None:
        line = f"{self.now:9.4f} {text}"
        self._digest = zlib.crc32(line.encode(), self._digest)
        self._trace.append(line)

    # --- faults -------------------------------------------------------------------------------

    def _fail_some(self, process: Process) -> None:
        if self._faults.crash:
            self._of(process, self._rng.expovariate(self._faults.crash / 4), lambda: self._kill(process))
        if self._faults.stop:
            self._of(process, self._rng.expovariate(self._faults.stop), lambda: self._stop(process))

    def _kill(self, process: Process) -> None:
        if sum(p.alive for p in self.processes) == 1:
            return
        self._note(f"worker {process.number} is killed")
        self.outcomes["killed"] += 1
        self._leave(process)
        process.alive = False
        self._in(TIMEOUT, self._commit)

    def _stop(self, process: Process) -> None:
        if self.now > CALM_S:
            return
        self._stand_still(process, self._rng.expovariate(1 / self._faults.stop_s))
        self._of(process, self._rng.expovariate(self._faults.stop), lambda: self._stop(process))

    def _freeze_some(self) -> None:
        """Stop one process or two, for a part of the timeout or three times as long."""
        if self.now > CALM_S:
            return
        seconds = 3 * TIMEOUT * 10 ** -self._rng.uniform(0.0, 1.5)
        for process in self._rng.sample(self.processes, self._rng.randint(1, 2)):
            if process.alive and process.stopped_until <= self.now:
                self._stand_still(process, seconds)
        self._in(self._rng.expovariate(self._faults.freeze), self._freeze_some)

    def _stand_still(self, process: Process, seconds: float) -> None:
        process.clock.look(self.now, LOOK_S)
        process.stopped_until = self.now + seconds
        process.stops.append((self.now, process.stopped_until))
        self._note(f"worker {process.number} is stopped until {process.stopped_until:.2f}")
        self._of(process, 0.0, lambda: process.clock.look(self.now, math.inf))
        if seconds > TIMEOUT:
            self._in(TIMEOUT, self._commit)

    def _time_of(self, process: Process) -> float:
        """Return a process's own time, which stands still while it does."""
        return process.clock.now(self.now)

    def _leave(self, process: Process) -> None:
        """End what a process has open."""
        connection, process.connection = process.connection, None
        if connection is not None:
            self._shut(connection)
        led, process.leads = process.leads, None
        if led is not None:
            if self._group is led:
                self._group = None
            for other in led.connections.values():
                self._break(other)

    def _shut(self, connection: Connection) -> None:
        """The process's end is closed: nothing more can be sent to it, and the leader notices when it has read all."""
        if connection.closed:
            return
        connection.closed = True
        group, at = connection.group, max(connection.up_at - self.now, 0.0)
        self._of(group.leader, at, lambda: self._handle(group, ConnectionEnded(connection.number)))

    def _break(self, connection: Connection) -> None:
        """The leader's end is closed: the process notices when it has read what was sent."""
        if connection.dropped:
            return
        connection.dropped = True
        process = connection.process
        self._of(process, max(connection.down_at - self.now, 0.0), lambda: self._leader_gone(process, connection))

    # --- a worker -----------------------------------------------------------------------------

    def _compute(self, process: Process) -> None:
        process.doing = ""
        if process.steps >= STEPS:
            self._note(f"worker {process.number} is done")
            self._leave(process)
            self._commit()
            return
        if self.mode == "sync":  # where others went on without it, it goes on where they are
            process.steps = max(process.steps, min(self.version, STEPS - 1))
        if self._rng.random() < AWAY and process.connection is not None:
            self._up(process.connection, Away())
            self._of(process, 1.0, lambda: self._back(process))
            return
        self._of(process, self._rng.expovariate(1 / COMPUTE_S), lambda: self._bring(process))

    def _back(self, process: Process) -> None:
        if self.mode == "sync":
            process.steps = max(process.steps, min(self.version, STEPS - 1))
        if process.connection is not None:
            self._up(process.connection, Here(process.steps))
        self._of(process, self._rng.expovariate(1 / COMPUTE_S), lambda: self._bring(process))

    def _bring(self, process: Process) -> None:
        process.doing, process.pushing = "push", False
        if self._join(process):
            assert process.connection is not None
            step = process.steps if self.mode == "sync" else process.round
            self._up(process.connection, HostGradients(step=step, places=[], counts=[]))

    def _want(self, process: Process) -> None:
        process.doing, process.pushing = "pull", False
        if self._join(process):
            assert process.connection is not None
            self._up(process.connection, Want(process.steps if self.mode == "sync" else process.round))

    def _join(self, process: Process) -> bool:
        """Whether it is in a group; else it joins one, or leads, and goes on when it is in."""
        if process.connection is not None:
            return True
        if self._group is None:
            machine = self._make(
                f"worker {process.number}", self.mode, process.steps, INTERVAL, TIMEOUT, self._time_of(process)
            )
            machine.values.places = [[(0, 0, 0, b"")], [(1, 0, 0, b"")]]
            self._group = process.leads = Group(process, machine)
            self._note(f"worker {process.number} leads")
            self._tick(self._group)
        group = self._group
        connection = process.connection = Connection(process=process, group=group, number=len(group.connections) + 1)
        group.connections[connection.number] = connection
        process.heard_at = self._time_of(process)
        self._up(connection, JoinGroup(f"worker {process.number}", process.number, process.steps))
        self._of(process, INTERVAL / 2, lambda: self._beat(process, connection))
        return False

    def _beat(self, process: Process, connection: Connection) -> None:
        if process.connection is not connection:
            return
        silent = self._time_of(process) - process.heard_at
        if silent > TIMEOUT and connection.group.leader is not process:
            self._note(f"worker {process.number} hears nothing of its leader")
            if self._group is connection.group:
                self._group = None
            self._shut(connection)
            self._read_rest(connection)
            self._leader_gone(process, connection)
            return
        self._up(connection, Alive())
        self._of(process, INTERVAL / 2, lambda: self._beat(process, connection))

    def _leader_gone(self, process: Process, connection: Connection) -> None:
        if process.connection is not connection:
            return
        self._leave(process)
        if process.doing not in ("push", "pull"):
            return
        if process.doing == "push" and process.pushing:
            self._note(f"worker {process.number} does not know what has become of its gradients")
            self.outcomes["unknown"] += 1
            self._end_step(process)
        else:
            self._again(process)

    def _again(self, process: Process) -> None:
        if process.doing == "push":
            self._bring(process)
        elif process.doing == "pull":
            self._want(process)

    def _read_rest(self, connection: Connection) -> None:
        """Take what was sent before the process's end was closed; it knows then whether its gradients may have left."""
        while connection.unread:
            self._hear(connection)

    def _hear(self, connection: Connection) -> None:
        if not connection.unread:
            return  # it was taken before it was due
        process, message = connection.process, connection.unread.popleft()
        if process.connection is not connection:
            return
        process.heard_at = self._time_of(process)
        if isinstance(message, Joined):
            process.round = message.step
            self._again(process)
        elif isinstance(message, Pushing):
            process.pushing = True
        elif isinstance(message, Done):
            process.round = message.step + 1
            self.acknowledged.add((process.number, process.steps))
            self.outcomes["push"] += 1
            self._end_step(process)
        elif isinstance(message, Alone) and not message.reads:
            process.doing = "push alone"
            self._of(process, self._delay(), lambda: self._push_alone(process))
        elif isinstance(message, Failed):
            self._again(process)
        elif isinstance(message, HostValues):
            self._check_read(process, message.version)
            self._up(connection, Got(message.number))
            self._compute(process)
        elif isinstance(message, Alone):
            process.doing = "pull alone"
            self._when(process.steps if self.mode == "sync" else 0, process, lambda: self._compute(process))
        elif isinstance(message, Dropped):
            self.outcomes["evicted"] += 1
            self._leave(process)
            if process.doing == "push":  # its user goes on with the next gradients
                self._end_step(process)
            else:
                self._again(process)

    def _check_read(self, process: Process, version: int) -> None:
        self.outcomes["pull"] += 1
        if self.mode == "sync":
            assert version == process.steps, f"worker {process.number} at {process.steps} reads version {version}"
        else:
            assert version >= process.read, f"worker {process.number} reads {version} after {process.read}"
        process.read = version

    def _push_alone(self, process: Process) -> None:
        self.outcomes["alone"] += 1
        self._apply([process])
        self.acknowledged.add((process.number, process.steps))
        self._end_step(process)

    def _end_step(self, process: Process) -> None:
        process.doing = ""
        if self.mode == "sync":
            self._arrived.setdefault(process.steps, set()).add(process.number)
        process.steps += 1
        self._commit()
        self._want(process)

    # --- servers and the coordinator ----------------------------------------------------------

    def _apply(self, processes: list[Process]) -> None:
        self.pushes += 1
        for process in processes:
            token = process.number, process.steps
            self.applied[token] += 1
            assert self.applied[token] == 1, f"the gradients of worker {token[0]} at {token[1]} are applied twice"
        if self.mode != "sync":
            self.version += 1
            self._wake()

    def _outside_step(self) -> None:
        self._outside += 1
        self._commit()

    def _commit(self) -> None:
        """Complete the step, if all live workers have arrived."""
        if self.mode != "sync":
            return
        for process in self.processes:
            late = process.stopped_until > self.now and process.stopped_until > self.now + TIMEOUT
            counts = process.alive and process.steps < STEPS and not late
            if counts and process.steps <= self.version:
                return
        if self._outside <= self.version:
            return
        self.version += 1
        self._in(self._rng.expovariate(1 / COMPUTE_S), self._outside_step)
        self._wake()

    def _when(self, version: int, process: Process, event: Callable[[], None]) -> None:
        """Let a process go on once a version is there."""
        if self.version >= version:
            self._of(process, self._delay(), event)
        else:
            self._sleeping.append((version, lambda: self._of(process, self._delay(), event)))

    def _wake(self) -> None:
        waiting, self._sleeping = self._sleeping, deque()
        for version, event in waiting:
            if self.version >= version:
                event()
            else:
                self._sleeping.append((version, event))

    # --- a leader -----------------------------------------------------------------------------

    def _up(self, connection: Connection, message: HostMessage) -> None:
        if connection.closed:
            return
        self._messages += 1
        group = connection.group
        connection.up_at = max(connection.up_at, self.now + self._delay())
        event = Heard(connection.number, message)
        self._of(group.leader, connection.up_at - self.now, lambda: self._handle(group, event))

    def _handle(self, group: Group, event: HostEvent) -> None:
        if group.leader.leads is group:
            if isinstance(event, Heard):
                group.connections[event.member].heard_at = self.now
            if not (isinstance(event, Heard) and isinstance(event.message, Alive)):
                self._note(f"{group.leader.number} {event}")
            self._carry_out(group, group.machine.handle(event, self._time_of(group.leader)))

    def _tick(self, group: Group) -> None:
        if group.leader.leads is not group:
            return
        now = self._time_of(group.leader)
        if now >= group.machine.next_deadline():
            self._carry_out(group, group.machine.on_deadline(now))
        self._of(group.leader, max(group.machine.next_deadline() - now, 0.01), lambda: self._tick(group))

    def _carry_out(self, group: Group, actions: list[HostAction]) -> None:
        group.machine.validate()
        lost = []
        for action in actions:
            if isinstance(action, Tell):
                if not self._down(group, action):
                    lost.append(action.member)
            elif isinstance(action, CloseConnection):
                self._break(group.connections[action.member])
            elif isinstance(action, PushRound):
                self._push(group, action.step, {n: b for n, b in action.brought.items() if n not in lost})
            elif isinstance(action, FetchValues):
                self._fetch(group, action)
        for number in lost:
            self._handle(group, ConnectionEnded(number))

    def _down(self, group: Group, tell: Tell) -> bool:
        connection = group.connections[tell.member]
        if isinstance(tell.message, Dropped):
            self._check_silent(group.leader, connection)
        if connection.closed or connection.dropped:
            return False
        self._messages += 1
        connection.down_at = max(connection.down_at, self.now + self._delay())
        connection.unread.append(tell.message)
        self._of(connection.process, connection.down_at - self.now, lambda: self._hear(connection))
        return True

    def _check_silent(self, leader: Process, connection: Connection) -> None:
        """Assert that a member that is dropped has stood still, and not only its leader."""
        process, since = connection.process, connection.heard_at
        silent_s = slept_s(process.stops, leader.stops, since, self.now)
        own = [stop for stop in leader.stops if stop[1] > since]
        unheard = INTERVAL + LATE_S + len(own) * (LOOK_S + SLACK_S)
        text = f"worker {process.number} is dropped, and stood still for {silent_s:.1f} s of {TIMEOUT:g}"
        assert not process.alive or silent_s >= TIMEOUT - unheard, text

    def _push(self, group: Group, step: int, brought: Mapping[int, HostGradients]) -> None:
        """Let the push of a round arrive at the servers, and its answer at the leader."""
        leader = group.leader
        tokens = [(p, p.steps) for p in (group.connections[number].process for number in brought)]
        if self.mode == "sync" and leader.steps != step:
            self._of(leader, self._delay(), lambda: self._handle(group, RoundPushed(alone=True)))
            return
        if self._rng.random() < FAILS:
            error = DeadlineError(operation="push", seconds=1.0, waiting_for="servers")
            self._of(leader, self._delay(), lambda: self._handle(group, RoundPushed(error)))
            return

        def arrive() -> None:  # the network carries it, whatever becomes of the leader
            for process, at in tokens:
                self.applied[process.number, at] += 1
                twice = f"the gradients of worker {process.number} at {at} are applied twice"
                assert self.applied[process.number, at] == 1, twice
            self.pushes += 1
            if self.mode != "sync":
                self.version += 1
                self._wake()
            self._of(leader, self._delay(), lambda: self._handle(group, RoundPushed()))

        self._in(self._delay(), arrive)

    def _fetch(self, group: Group, fetch: FetchValues) -> None:
        step = group.leader.steps if self.mode == "sync" else fetch.step

        def come() -> None:
            version = self.version
            label = version if self.mode == "sync" else step
            self._handle(group, Fetched(fetch.number, label, version))

        self._when(step if self.mode == "sync" else 0, group.leader, come)
