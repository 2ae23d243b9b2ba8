"""The worker's side of the consistency gate: its clock, its step, and the operations held until it may proceed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count

from zmqps.core.job.spec import MAX_COUNT
from zmqps.core.protocol.events import Action, Log
from zmqps.core.protocol.messages import Arrive, Proceed
from zmqps.core.protocol.terms import are_values, terms_of
from zmqps.core.worker.operations import Advance, Attached, Exchange
from zmqps.core.worker.transfer import AnyTransfer, PullTransfer, PushTransfer
from zmqps.errors import counted, listed

#: How many of a step's missing parameters are named.
MOST_NAMED = 5


class Gate(Enum):
    """Whether transfers may begin.

    It is OPEN; CLOSING while a step about to end has unacknowledged pushes; COMPLETE once all are acknowledged, and the
    worker should arrive; ARRIVED until the coordinator lets it proceed. If the coordinator answers with an error, the
    wait has FAILED: the worker has still arrived, and the next transfer waits again.
    """

    OPEN = "open"
    CLOSING = "closing"
    COMPLETE = "complete"
    ARRIVED = "arrived"
    FAILED = "failed"


#: Transfers are held.
SHUT = (Gate.CLOSING, Gate.COMPLETE, Gate.ARRIVED)


@dataclass(slots=True)
class Pause:
    """A pause for a checkpoint that is a cut between pushes: no transfer begins."""

    number: int  # of the checkpoint
    until: float  # it ends by itself without a message
    says_at: float | None = None  # when to repeat the message; None: it was not sent yet

    @property
    def due(self) -> float:
        """When it ends, or its message is due again."""
        return self.until if self.says_at is None else min(self.until, self.says_at)


class StepExamples:
    """The examples of a worker's step, from its pushes.

    Parts of one batch count once, and consecutive batches add up. So the step has as many as the pushes of the
    parameter with the most examples. Rows of tables are parts of a batch, never another one.
    """

    def __init__(self) -> None:
        self.wanted = False  # by the job, whose mean is over all workers of a step
        self._largest = 0
        self._of: Counter[int] = Counter()  # by parameter, where there are several pushes

    def add(self, push: PushTransfer, *, alone: bool = False) -> None:
        """A push is on the servers, or is empty; ``alone``: it is the step's first and last."""
        if not self.wanted or are_values(push.terms):
            return
        self._largest = max(self._largest, push.examples)
        if not alone:
            brought = {extent.parameter for shard in push.cargoes for cargo in shard for extent in cargo.extents}
            self._of.update(dict.fromkeys(brought, push.examples))

    @property
    def so_far(self) -> int:
        """The examples of the step; one without any information has one."""
        return min(max(1, self._largest, *self._of.values()), MAX_COUNT)

    def clear(self) -> None:
        """The step is over, or was dropped."""
        self._largest = 0
        self._of.clear()


class Unfinished:
    """What the pushes of a worker's step leave out, if none of them ends it: reported once."""

    def __init__(self) -> None:
        self.lacking: set[int] | None = None  # by all of them; None: there are none
        self._expected = 0
        self._warned = False

    def add(self, push: PushTransfer) -> None:
        """A push is sent that does not end the step."""
        if not push.expected:  # of rows: no parameter is awaited because of it
            return
        lacking = set(push.lacking)
        self.lacking = lacking if self.lacking is None else self.lacking & lacking
        self._expected = push.expected

    def alone(self, push: PushTransfer, attached: Attached | None) -> list[Action]:
        """Warn about partial pushes where each push is applied by itself; only the first time."""
        if self._warned or attached is None:
            return []
        self._warned = True
        names = [repr(attached.job.parameters[number].name) for number in sorted(push.lacking)]
        pushed = f"{push.expected - len(names)} of {counted(push.expected, 'parameter')} pushed"
        lacking = f"not {listed(names, MOST_NAMED)}, and only what is pushed is updated"
        return [Log("warning", f"{pushed}, {lacking}; push(step=True) says that this is meant")]

    def warning(self, attached: Attached | None) -> list[Action]:
        """Warn about reading in the middle of a step; only the first time."""
        if self.lacking is None or self._warned or attached is None:
            return []
        self._warned = True
        names = [repr(attached.job.parameters[number].name) for number in sorted(self.lacking)]
        pushed = f"{self._expected - len(names)} of {counted(self._expected, 'parameter')} pushed in this step"
        lacking = f", not {listed(names, MOST_NAMED)}" if names else ", one by one"
        return [Log("warning", f"{pushed}{lacking}; push(step=True) or advance() ends it, and values change only then")]


class StepPushes:
    """What a worker has contributed to its step."""

    def __init__(self) -> None:
        self.closing: PushTransfer | Advance | None = None  # ends the step, once requested
        self.unacknowledged: set[PushTransfer] = set()  # in flight
        self.attempts: list[int] = []  # that all shards have acknowledged
        self.examples = StepExamples()
        self.unfinished = Unfinished()
        self.passed = False  # a step of partial pushes was passed: the advance for it ends nothing
        self._attempt_numbers = count(1)

    def start(self, push: PushTransfer) -> None:
        """A push of the step is sent."""
        self.passed = False
        if any(push.cargoes):  # an empty push is not a gradient
            push.attempt = next(self._attempt_numbers)
            self.unacknowledged.add(push)
        else:
            self.examples.add(push)
        if push.whole:
            self.closing = push
        elif not are_values(push.terms):
            self.unfinished.add(push)

    def pushed(self, push: PushTransfer) -> None:
        """All shards have acknowledged a push."""
        self.unacknowledged.discard(push)
        alone = push.whole and not self.attempts and not self.unacknowledged
        self.examples.add(push, alone=alone)
        self.attempts.append(push.attempt)

    def arriving(self, request: int, clock: int, *, may_leave_out: bool) -> Arrive:
        """Return the arrival for the whole step; a step without pushes that is not skipped has one attempt."""
        closing = self.closing if isinstance(self.closing, Advance) else Advance()
        for_all = closing.for_all and may_leave_out
        examples = self.examples.so_far if closing.examples is None else closing.examples
        if closing.skips and not for_all:
            arrive = Arrive(request, clock, ())
        else:
            attempts = tuple(sorted(self.attempts))
            if not attempts and (for_all or (self.examples.wanted and examples)):
                attempts = (next(self._attempt_numbers),)
            arrive = Arrive(request, clock, attempts, examples, int(for_all))
        self.clear()
        self.closing = None
        return arrive

    def clear(self) -> None:
        """The step is over: only pushes in flight still belong to it."""
        self.unfinished.lacking = None
        self.examples.clear()
        self.attempts.clear()


class Pace:
    """Where a worker is in its sequence of steps.

    A push of the whole model (or an explicit `Advance`, perhaps after partial pushes) *closes* the gate: when all
    shards have acknowledged it the worker arrives at the coordinator, and later transfers are held until it may
    proceed. It arrives with the pushes of the step; without any it has skipped it.
    """

    def __init__(self) -> None:
        self.mode = "async"
        self.clock = 0  # the step the next gradients belong to
        self.version = 0  # the lowest version for reads
        self.slowest = 0  # bounded: the clock that the slowest worker is known to have reached
        self.gate = Gate.OPEN
        self.arrive: Arrive | None = None  # the last arrival sent to the coordinator
        self.awaited = ""  # what it waits for, in the coordinator's words
        self.held: OrderedDict[Exchange | Advance, None] = OrderedDict()  # in the order in which they start
        self.paused: Pause | None = None
        self.step = StepPushes()

    def attach(self, mode: str, clock: int, *, counts_all: bool = False) -> None:
        """The job is known."""
        self.mode, self.clock, self.step.examples.wanted = mode, max(clock, self.clock), counts_all
        self.version = self.clock if mode == "sync" else 0

    @property
    def closed(self) -> bool:
        """Whether transfers are held."""
        return self.gate in SHUT or self.paused is not None

    @property
    def next_step(self) -> int:
        """The step of the next push."""
        return self.clock + (self.gate in SHUT)

    @property
    def reads_at(self) -> int:
        """The clock of a read requested now, after all held operations: the steps that end with them count."""
        ends = [isinstance(held, Advance) or (held.push is not None and held.push.whole) for held in self.held]
        return self.next_step + sum(ends)

    def start(self, transfer: AnyTransfer, terms: Sequence[float] = ()) -> None:
        """A transfer is sent; note its step, and its ``terms`` if it has no step."""
        if terms and isinstance(transfer, PushTransfer) and self.mode != "sync":
            transfer.terms = terms_of(transfer.terms[0] if transfer.terms else 1.0, terms[1:])
        if self.mode == "async":
            return
        if isinstance(transfer, PushTransfer):
            transfer.step = self.clock
            self.step.start(transfer)
            if transfer.whole:
                self._close()
        elif isinstance(transfer, PullTransfer):
            transfer.slowest = self.slowest
            if not transfer.exact:  # else an older version was asked for
                transfer.version = max(transfer.version, self.version)

    def close(self, advance: Advance) -> bool:
        """End the step as soon as its pushes are acknowledged; return whether there is one."""
        ends = self.mode != "async" and not self.step.passed
        self.step.passed = False
        if ends:
            self.step.closing = advance
            self._close()
        return ends

    def _close(self) -> None:
        self.gate = Gate.CLOSING if self.step.unacknowledged else Gate.COMPLETE

    def pushed(self, transfer: PushTransfer) -> None:
        """All shards have acknowledged a push."""
        if self.mode != "async":
            self.step.pushed(transfer)
            if self.gate is Gate.CLOSING:
                self._close()

    def forget(self, ended: PushTransfer | Advance) -> None:
        """A push, or an advance, has ended; a failed push completes no step, and may be repeated."""
        step = self.step
        if ended is step.closing and (isinstance(ended, Advance) or ended in step.unacknowledged):
            step.closing, self.gate = None, Gate.OPEN
        if isinstance(ended, PushTransfer):
            step.unacknowledged.discard(ended)
        if self.gate is Gate.CLOSING:
            self._close()

    @property
    def brought(self) -> bool:
        """Whether anything of this step is acknowledged or in flight."""
        return bool(self.step.attempts or self.step.unacknowledged)

    def arriving(self, request: int) -> Arrive:
        """Return the message that the step is complete; the gate is closed until its answer."""
        if self.gate is Gate.FAILED:
            self.arrive = Arrive(request, self.clock, ())
        else:
            self.arrive = self.step.arriving(request, self.clock, may_leave_out=self.mode == "sync")
        self.gate = Gate.ARRIVED
        return self.arrive

    def proceed(self, message: Proceed) -> None:
        """The coordinator lets this worker proceed."""
        assert self.arrive is not None
        if self.mode == "sync":
            self.clock = self.version = max(self.clock, message.version)
        else:
            self.clock, self.slowest = max(self.clock, self.arrive.step + 1), max(self.slowest, message.version)
        self.gate, self.arrive, self.awaited = Gate.OPEN, None, ""

    def go_back(self, clock: int) -> None:
        """The job is at an earlier step."""
        self.clock = self.version = clock
        self.step.clear()
        self.step.unacknowledged.clear()
        self.step.closing = None
        self.gate, self.arrive, self.awaited = Gate.OPEN, None, ""

    def resume(self, clock: int) -> bool:
        """The others did not wait for this worker for a while, and are at ``clock`` or beyond ours.

        Return whether that lost gradients: of a step that was not complete and is over now.
        """
        if self.mode == "async" or clock <= self.clock:
            return False
        self.attach(self.mode, clock, counts_all=self.step.examples.wanted)
        lost = bool(self.step.attempts)
        self.step.clear()
        self.step.passed |= lost
        return lost

    def failed(self) -> None:
        """The wait ended with an error; the next transfer waits again."""
        self.gate, self.arrive, self.awaited = Gate.FAILED, None, ""

    def validate(self) -> None:
        """Assert that nothing is held without a reason, and that the gate's state is consistent."""
        assert self.closed or not self.held
        for operation in self.held:
            assert not operation.done
        assert (self.arrive is not None) == (self.gate is Gate.ARRIVED)
        assert (self.step.closing is not None) == (self.gate in (Gate.CLOSING, Gate.COMPLETE))
        assert self.gate is not Gate.COMPLETE or not self.step.unacknowledged
        assert self.gate is not Gate.CLOSING or self.step.unacknowledged
