"""Listens to what synchronous training says on the wire, and asserts that it keeps its promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tests.simulator.engine import Node
from tests.simulator.jobs.exact import ExactReference
from tests.simulator.jobs.reference import Gradient, Reference, examples_of
from tests.simulator.jobs.tables import shards_of_ids
from tests.simulator.jobs.trained import RowGradient, RowReference, RowVersion, brought_by
from tests.simulator.jobs.training import Life, copies_on, life_of
from tests.simulator.watching.rates import RateWitness
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.places import FINISHED
from zmqps.core.coordinator.training.steps import commit_of
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.message import Contributor
from zmqps.core.protocol.plain import unpack
from zmqps.core.protocol.terms import are_values
from zmqps.core.server.dense.aggregate import PushId
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PushTransfer as Pushing
from zmqps.errors import DeadlineError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from tests.simulator.placement.stores import SavedJob


#: No worker is late at a step sooner after the first one has arrived.
LATE_S = 1.0
#: Rounding of times.
EPSILON_S = 1e-6

#: A life of a job, and how often it went back to a checkpoint.
Track = tuple[Life, int]


class Pushed(NamedTuple):
    """A push as its worker meant it."""

    step: int
    gradient: Gradient


class StepWitness:
    """The pushes, arrivals and commits, and whether they fit together.

    Parameters
    ----------
    simulation
        Which it listens to.
    job, values
        What is trained, and its initial values.
    name
        The job's.
    expected
        How many workers the first step waits for.
    exact
        Whether servers must have the same bits as uninterrupted training, and not only about the same values.
    """

    def __init__(
        self,
        simulation: SimulatedCluster,
        job: JobSpec,
        values: Sequence[Array],
        name: str,
        expected: int,
        *,
        exact: bool = False,
    ) -> None:
        self._simulation = simulation
        self._job = job
        self._values = values
        self._name = name
        self._expected = expected
        self._exact = exact
        # by life of the job, and how often it went back to a checkpoint
        self._references: dict[Track, Reference] = {}
        self._exactly: dict[Life, ExactReference] = {}
        self._commits: dict[Track, list[tuple[Contributor, ...]]] = defaultdict(list)  # by step
        self._pushes: dict[tuple[bytes, int], Pushed] = {}  # by incarnation and attempt
        self._counted: set[tuple[bytes, int]] = set()
        self.left_out: set[tuple[bytes, int]] = set()  # pushes of a step that its worker has skipped
        self._leaves_out: set[tuple[bytes, int, int]] = set()  # left out for all; as in `_brought`
        self._left_out: dict[Track, set[int]] = defaultdict(set)  # steps of which no gradient was applied
        self._asked: dict[tuple[bytes, int], m.Arrive] = {}  # by incarnation and request
        # by incarnation, step, and how often that had gone back
        self._brought: dict[tuple[bytes, int, int], list[tuple[int, ...]]] = defaultdict(list)
        self._skipped: set[tuple[bytes, int, int]] = set()  # arrivals at a step without gradients, likewise
        # by coordinator, step, and how often that had gone back: when its first worker has arrived
        self._begun_at: dict[tuple[object, int, int], float] = {}
        self.rates: dict[Life, RateWitness] = defaultdict(RateWitness)
        self._training: set[bytes] = set()  # whom others wait for
        # workers that wait for data or at a barrier, and are not waited for, with the requests
        self._pausing: dict[bytes, set[int]] = defaultdict(set)
        self._joined: dict[bytes, set[bytes]] = defaultdict(set)  # by life of the coordinator
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)
        simulation.on_written.append(self._written)

    def reference(self, life: Life, back: int) -> Reference:
        """Return what the values must be in a life of the job that has gone back so often."""
        if (life, back) not in self._references:
            rows = RowReference(self._job.tables)
            self._references[life, back] = Reference(self._values, clip_norm=self._job.clip_norm, rows=rows)
        return self._references[life, back]

    def exactly(self, life: Life, back: int) -> ExactReference | None:
        """Return what servers must have to the bit; None where that is not known."""
        run = self._simulation.coordinator.runs.get(self._name)
        if not self._exact or life in self._exactly or back:
            return None if back else self._exactly.get(life)
        if run is None or run.startup.placement is None or run.startup.epoch != life[1]:
            return None
        if self.reference(life, back).first:
            return None
        return self._exactly.setdefault(life, ExactReference(self._job, run.startup.placement, self._values))

    def of_copy(self, coordinator: bytes, epoch: int) -> Reference:
        """Return what the values of a copy of a shard must be."""
        simulation = self._simulation
        return self.reference(simulation.life_of_copy(coordinator, epoch), simulation.track_of_copy(coordinator, epoch))

    def read_by(self, worker: Node) -> Reference:
        """Return what a worker must read."""
        machine, (coordinator, _) = worker.machine, life_of(worker)
        assert isinstance(machine, SessionKernel)
        return self.of_copy(coordinator, machine.links.by_shard[0].server.epoch)

    def resume(self, life: Life, saved: SavedJob, rows: RowVersion, back: int = 0) -> None:
        """A life of the job begins from a checkpoint, or has gone back to one so often."""
        if (life, back) not in self._references:
            velocity = saved.slots[0] if saved.slots else []
            trained = RowReference(self._job.tables, saved.version, rows)
            self._references[life, back] = Reference(
                saved.values, velocity, saved.version, self._job.clip_norm, trained
            )
            self._commits[life, back] = [()] * saved.version

    def check_freed(self, server: Node) -> None:
        """Assert that a server that frees its shard because the workers are done has every step."""
        simulation, coordinator = self._simulation, self._simulation.coordinator
        ended = coordinator.ended.by_name.get(self._name)
        if ended is None or not ended.how.startswith(FINISHED):
            return
        for life, epoch, shard in copies_on(simulation, server, self._name):
            if life == (coordinator.identity.incarnation, ended.epoch) and simulation.is_live(server, epoch):
                steps = self._commits[life, simulation.num_back[life]]
                num_steps = shard.version if shard.is_empty else len(steps)  # of nothing it may have been told of none
                assert shard.version == num_steps, f"{server.name} has {shard.version} of {num_steps} steps"

    # --- what travels --------------------------------------------------------------------------

    def _sent(self, sender: Node, receiver: str, message: m.Message) -> None:
        who = sender.identity.incarnation
        if isinstance(message, (m.Push, m.PushRows)):
            if (who, message.attempt) not in self._pushes:
                self._pushes[who, message.attempt] = _meant(sender, message)
        elif isinstance(message, m.Arrive):
            self._asked[who, message.request] = message
        elif isinstance(message, m.Commit):
            self._committed(sender, message)
        elif isinstance(message, (m.Error, m.Job, m.Proceed, m.Range, m.Released)) and sender.role == "coordinator":
            worker = self._simulation.nodes[receiver]
            other = worker.identity.incarnation
            self._pausing[other].discard(message.request)
            if (
                isinstance(message, m.Error)
                and message.code == DeadlineError.code
                and (other, message.request) in self._asked
            ):
                step = self._asked[other, message.request].step
                self._check_patience(sender, step, self._simulation.num_back[life_of(worker)])
            if isinstance(message, m.Proceed):
                self._released(life_of(worker), other, message)
            elif isinstance(message, m.Job) and not message.load:
                self._training.add(other)

    def _written(self, node: Node) -> None:
        """Take what a coordinator decides when it is kept, for it may come back before it has told anybody."""
        data = self._simulation.journals[node.name].get(f"step/{self._name}")
        for entry in unpack(data)["commits"] if data is not None else ():
            epoch = self._simulation.coordinator.runs[self._name].startup.epoch
            self._committed(node, replace(commit_of(entry), epoch=epoch))

    def _received(self, receiver: Node, sender: str, message: m.Message) -> None:
        if receiver.role == "coordinator":
            who = self._simulation.nodes[sender].identity.incarnation
            if isinstance(message, m.Hello) and message.role == "worker":
                self._joined[receiver.identity.incarnation].add(who)
            elif isinstance(message, (m.Take, m.Enter)):
                self._pausing[who].add(message.request)
            elif isinstance(message, m.Withdraw):
                self._pausing[who].discard(message.request)
            elif isinstance(message, m.Arrive) and not self._is_moot(receiver, who):
                back = self._simulation.num_back[life_of(self._simulation.nodes[sender])]
                attempts, brought = tuple(message.attempts), self._brought[who, message.step, back]
                began = receiver.machine, message.step, back
                self._begun_at.setdefault(began, self._simulation.time_of(receiver))
                if not attempts:
                    self._skipped.add((who, message.step, back))
                elif attempts not in brought:
                    brought.append(attempts)
                    if message.leaves_out:
                        self._leaves_out.add((who, message.step, back))

    def _is_moot(self, coordinator: Node, who: bytes) -> bool:
        """Whether a coordinator takes nothing of what a worker says: it was given up, or its steps may be gone."""
        assert isinstance(coordinator.machine, CoordinatorMachine)
        member = coordinator.machine.membership.members.get(who)
        if member is None:
            return True
        run = coordinator.machine.runs.get(member.job)
        return run is not None and run.fallback.makes_moot(member)

    # --- what must hold ------------------------------------------------------------------------

    def _committed(self, coordinator: Node, commit: m.Commit) -> None:
        """Assert that a step is made of whole contributions to it, none of them used before."""
        life, step = self._simulation.life_of_copy(coordinator.identity.incarnation, commit.epoch), commit.step
        back = self._simulation.num_back[life]
        commits, contributors = self._commits[life, back], tuple((who, tuple(a)) for who, a in commit.contributors)
        if step < len(commits):
            assert contributors == commits[step], f"step {step} is committed with other contributors than before"
            before = step in self._left_out[life, back]
            assert bool(commit.left_out) == before, f"step {step} was left out for all before: {before}"
            return
        assert step == len(commits), f"step {step} is committed after {len(commits)} steps"
        commits.append(contributors)
        gradients = []
        for who, attempts in contributors:
            assert len(set(attempts)) == len(attempts) > 0, f"step {step} has no, or the same, pushes of a worker"
            parts = {attempt for brought in self._brought[who, step, back] for attempt in brought}
            assert set(attempts) == parts, f"step {step} counts pushes {attempts} of a worker that arrived with {parts}"
            for attempt in attempts:
                assert (who, attempt) not in self.left_out, f"step {step} counts what its worker has left out"
                push = self._pushed(who, attempt, step)
                assert push.step == step, f"a gradient of step {push.step} counts in step {step}"
                assert (who, attempt) not in self._counted, f"a gradient counts twice, again in step {step}"
                self._counted.add((who, attempt))
                gradients.append(push.gradient)
        assert len({who for who, _ in contributors}) == len(contributors), f"a worker counts twice in step {step}"
        self._check_quorum(coordinator, step, contributors, back)
        self._check_there(step, contributors)
        examples, left_out = self._check_mean(commit, contributors, back), bool(commit.left_out)
        if left_out:
            self._left_out[life, back].add(step)
        if (exact := self.exactly(life, back)) is not None:
            exact.step(contributors, gradients, commit.terms[1:], examples=examples, left_out=left_out)
        numbers = self.rates[life].of_step(step, commit.terms[1:])
        self.reference(life, back).step(gradients, numbers, examples=examples, left_out=left_out)

    def _pushed(self, who: bytes, attempt: int, step: int) -> Pushed:
        """Return what an attempt has brought: nothing, where a worker had nothing and did not skip the step."""
        if (who, attempt) in self._pushes:
            return self._pushes[who, attempt]
        return Pushed(step, Gradient([None] * len(self._job.parameters), 1))

    def _check_mean(self, commit: m.Commit, contributors: Sequence[Contributor], back: int) -> int:
        """Assert that the mean is over as many examples as its workers had, and left out if one of them has said so.

        Return how many these are; 0: the mean is over those that pushed.
        """
        step = commit.step
        leave_out = any((who, step, back) in self._leaves_out for who, _ in contributors)
        text = f"step {step} was left out for all: {commit.left_out}, it should be: {leave_out}"
        assert bool(commit.left_out) == leave_out, text
        arrivals = [(who, attempts) for who, _ in contributors for attempts in self._brought[who, step, back]]
        gradients = [[self._pushed(who, a, step).gradient for a in attempts] for who, attempts in arrivals]
        examples = sum(map(examples_of, gradients)) if self._job.mean == "workers" else 0
        text = f"step {step} has a mean over {commit.examples} examples, its workers had {examples}"
        assert commit.examples == examples, text
        return examples

    def _check_there(self, step: int, contributors: tuple[Contributor, ...]) -> None:
        """Assert that all that the step is made of is where it is to be applied, if nothing happens from now on."""
        simulation = self._simulation
        run = simulation.coordinator.runs[self._name]
        nodes = {node.identity.incarnation: node for node in simulation.servers if node.alive}
        for _, epoch, server in run.startup.leaders():
            machine = nodes[server.incarnation].machine if server.incarnation in nodes else None
            tenant = machine.tenants.get(epoch) if isinstance(machine, ServerKernel) else None
            if tenant is None or tenant.shard is None or tenant.shard.steps is None or tenant.shard.version > step:
                continue
            shard, stage = tenant.shard, tenant.shard.steps.stage
            here = {segment.parameter for state in shard.slices for segment in state.slice.segments}
            for who, attempts in contributors:
                for attempt in attempts:
                    gradient = self._pushed(who, attempt, step).gradient
                    if gradient.rows is not None:
                        self._check_rows_there(shard, step, (who, attempt), gradient.rows)
                    if any(gradient.source[parameter] is not None for parameter in here):
                        there = (who, attempt) in stage._steps.get(step, {})
                        assert there, (
                            f"step {step} is decided, and the leader of shard {shard.index} lacks a gradient of it"
                        )

    def _check_rows_there(self, shard: Shard, step: int, push: PushId, gradient: RowGradient) -> None:
        """Assert the same of rows."""
        mine = shards_of_ids(shard.placement, gradient.table)[gradient.which] == shard.index
        there = not mine.any() or push in rows_in(shard)._staged.get(step, {})
        assert there, f"step {step} is decided, and the leader of shard {shard.index} lacks rows of it"

    def _check_quorum(self, coordinator: Node, step: int, contributors: tuple[Contributor, ...], back: int) -> None:
        """Assert that the step has waited for whom the job says."""
        count = sum(len(self._brought[who, step, back]) for who, _ in contributors)
        skipped = {who for who, at, turn in self._skipped if (at, turn) == (step, back)}
        assert count or skipped, f"step {step} is committed without a gradient"
        if self._simulation.many_go:
            return
        goes_on = self._job.on_straggler == "continue"
        if self._job.aggregate is not None:
            assert goes_on or count >= self._job.aggregate, (
                f"step {step} has {count} of {self._job.aggregate} gradients"
            )
            return
        machine = coordinator.machine
        assert isinstance(machine, CoordinatorMachine)
        spares = machine.runs[self._name].attendance.spares
        live = self._training & set(machine.membership.members) - set(spares)
        missing = {who for who in live if not self._pausing[who]} - {who for who, _ in contributors} - skipped
        if goes_on:
            return self._check_patience(coordinator, step, back) if missing else None
        assert not missing, f"step {step} is committed without {len(missing)} workers that live"
        joined = len(self._joined[coordinator.identity.incarnation])
        assert joined >= self._expected, f"step {step} is committed when only {joined} workers had joined"

    def _check_patience(self, coordinator: Node, step: int, back: int) -> None:
        """Assert that workers late at a step have had their time: the coordinator was awake for so long."""
        if (began_at := self._begun_at.get((coordinator.machine, step, back))) is not None:
            waited_s = self._simulation.time_of(coordinator) - began_at
            assert waited_s >= LATE_S - EPSILON_S, f"step {step} has waited for the late for {waited_s:.1f} s only"

    def _lost_at_once(self) -> bool:
        """Whether a step was decided and the last of its servers lost in one moment: no server was told to apply it."""
        run = self._simulation.coordinator.runs.get(self._name)
        return self._simulation.many_go and run is not None and run.lost_shard is not None

    def _released(self, life: Life, who: bytes, proceed: m.Proceed) -> None:
        """Assert that a worker is told the truth about its gradients."""
        back = self._simulation.num_back[life]
        arrive, commits = self._asked[who, proceed.request], self._commits[life, back]
        if proceed.version > len(commits) and self._lost_at_once():
            return
        assert proceed.version <= len(commits), f"a worker may read version {proceed.version} of {len(commits)}"
        if arrive.step >= len(commits):
            return  # more gradients are wanted for the same step
        if proceed.version == arrive.step + 1:  # of an earlier step it need not be known any more
            left_out = arrive.step in self._left_out[life, back]
            assert bool(proceed.left_out) == left_out, f"a worker is told of step {arrive.step}: {proceed.left_out}"
        counted = dict(commits[arrive.step]).get(who, ())
        mine = {attempt for brought in self._brought[who, arrive.step, back] for attempt in brought}
        if proceed.counted:
            assert mine <= set(counted), f"pushes {mine} of step {arrive.step} are lost: only {counted} were committed"
        else:
            assert not set(arrive.attempts) & set(counted), f"a worker is told that what counts was dropped: {counted}"


def _meant(worker: Node, push: m.Push | m.PushRows) -> Pushed:
    """Return what the worker's script asked for by the transfer that a push belongs to."""
    machine = worker.machine
    assert isinstance(machine, SessionKernel)
    requests = (link.in_flight.get(push.request) for link in machine.links.by_shard)
    transfer = next(request.transfer for request in requests if request is not None)
    assert isinstance(transfer, Pushing)
    assert machine.attached is not None
    placement = machine.attached.placement
    if (rows := brought_by(transfer, placement)) is not None:
        nothing = [None] * len(placement.keyspace.parameters)
        return Pushed(push.step, Gradient(nothing, transfer.examples, rows=rows))
    pushed = {extent.parameter for cargoes in transfer.cargoes for cargo in cargoes for extent in cargo.extents}
    source = [array if i in pushed else None for i, array in enumerate(transfer.source.arrays)]
    sort = transfer.terms[0] if are_values(transfer.terms) else 0.0
    return Pushed(push.step, Gradient(source, transfer.examples, sort))
