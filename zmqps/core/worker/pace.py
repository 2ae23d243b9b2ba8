"""The worker's side of the consistency gate: its clock, and what is held until it may go on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from zmqps.core.protocol.messages import Arrive, Error, Message, Proceed, Waiting
from zmqps.core.protocol.terms import are_values, terms_of
from zmqps.core.worker.examples import StepExamples
from zmqps.core.worker.layout.unfinished import Unfinished
from zmqps.core.worker.operations import Advance, Exchange
from zmqps.core.worker.transfer import LoadTransfer, PullTransfer, PushTransfer


class Pace:
    """Where a worker is in its sequence of steps.

    A push of the whole model (or an explicit `Advance`, perhaps after partial pushes) *closes* the gate:
    when all shards have acknowledged it the worker arrives at the coordinator, and later transfers are
    held until that lets it proceed. It arrives with the pushes of the step; with none it has skipped it.
    """

    def __init__(self) -> None:
        self.mode = "async"
        self.clock = 0  # the step the next gradients belong to
        self.version = 0  # what reads demand at least
        self.slowest = 0  # bounded: the clock that the slowest worker is known to have reached
        self.closing: PushTransfer | Advance | None = None
        self.arrive: Arrive | None = None
        self.awaited = ""
        self.held: OrderedDict[Exchange | Advance, None] = OrderedDict()  # in the order in which they begin
        self._unacknowledged: set[PushTransfer] = set()  # pushes of this step that are under way
        self._attempts: list[int] = []
        self._next_attempt = 1
        self.examples = StepExamples()
        self.unfinished = Unfinished()
        self.passed = False  # a step of partial pushes went by: the advance that was to end it ends nothing
        self._failed = False  # the last wait ended with an error; the worker has still arrived
        self.paused: int | None = None  # the checkpoint that a pause is for: no transfer begins
        self.resumes_at: float | None = None  # by itself, if nobody says so
        self.has_range = False  # of a data set's examples
        #: Since the job has gone back: the next gradients are of values, or of examples, that are gone.
        self.stale_values = self.stale_range = False

    def pause(self, number: int, until: float) -> None:
        """Begin nothing more, for a checkpoint that is to be a cut between pushes."""
        self.paused, self.resumes_at = number, until

    def unpause(self) -> None:
        """Go on."""
        self.paused = self.resumes_at = None

    def attach(self, mode: str, clock: int, *, counts_all: bool = False) -> None:
        """The job is known."""
        self.mode, self.clock, self.examples.wanted = mode, max(clock, self.clock), counts_all
        self.version = self.clock if mode == "sync" else 0

    @property
    def closed(self) -> bool:
        """Whether transfers are held."""
        return self.closing is not None or self.arrive is not None or self.paused is not None

    @property
    def unheard(self) -> bool:
        """Whether the coordinator may not know yet that we have arrived: it has not answered at all."""
        return self.arrive is not None and not self.awaited

    @property
    def waits_again(self) -> bool:
        """Whether the next transfer has to wait for a step whose wait has failed before."""
        return self._failed and not self.closed

    def waits_for(self, message: Message) -> bool:
        """Whether a message of the coordinator is about our arrival; the number of a `Fetch` is none of ours."""
        answers = isinstance(message, (Proceed, Waiting, Error))
        return answers and self.arrive is not None and message.request == self.arrive.request  # type: ignore[attr-defined]

    @property
    def next_step(self) -> int:
        """The step of the next push."""
        return self.clock + (self.closing is not None or self.arrive is not None)

    @property
    def reads_at(self) -> int:
        """The clock of a read that is asked for now, after all that is held: the steps that end with that count."""
        ends = [isinstance(held, Advance) or (held.push is not None and held.push.whole) for held in self.held]
        return self.next_step + sum(ends)

    def start(self, transfer: PushTransfer | PullTransfer | LoadTransfer, terms: Sequence[float] = ()) -> None:
        """A transfer leaves; say which step it belongs to, and on which ``terms`` it is applied if it has no step."""
        if terms and isinstance(transfer, PushTransfer) and self.mode != "sync":
            transfer.terms = terms_of(transfer.terms[0] if transfer.terms else 1.0, terms[1:])
        if self.mode == "async":
            return
        if isinstance(transfer, PushTransfer):
            transfer.step, self.passed = self.clock, False
            if any(transfer.cargoes):  # nothing is no gradient
                transfer.attempt = self._next_attempt
                self._next_attempt += 1
                self._unacknowledged.add(transfer)
            else:
                self.examples.add(transfer)
            if transfer.whole:
                self.closing = transfer
            elif not are_values(transfer.terms):
                self.unfinished.add(transfer)
        elif isinstance(transfer, PullTransfer):
            if self.stale_values:
                self.stale_values = False
                transfer.version = transfer.version if transfer.exact else 0  # what it asked for, it knew from before
            transfer.slowest = self.slowest
            if not transfer.exact:  # else an older version was asked for
                transfer.version = max(transfer.version, self.version)

    def close(self, advance: Advance) -> bool:
        """End the step as soon as its pushes are acknowledged; return whether there is one."""
        ends = self.mode != "async" and not self.passed
        self.passed = False
        self.closing = advance if ends else None
        return ends

    def pushed(self, transfer: PushTransfer) -> None:
        """All shards have acknowledged a push."""
        if self.mode != "async":
            self._unacknowledged.discard(transfer)
            alone = transfer.whole and not self._attempts and not self._unacknowledged
            self.examples.add(transfer, alone=alone)
            self._attempts.append(transfer.attempt)

    def forget(self, ended: PushTransfer | Advance) -> None:
        """A push, or an advance, has ended, well or not; a push that failed completes no step, and may be repeated."""
        if ended is self.closing and (isinstance(ended, Advance) or ended in self._unacknowledged):
            self.closing = None
        if isinstance(ended, PushTransfer):
            self._unacknowledged.discard(ended)

    @property
    def complete(self) -> bool:
        """Whether all pushes of a step that is being closed are acknowledged, in whatever order that happens."""
        return self.closing is not None and not self._unacknowledged

    @property
    def brought(self) -> bool:
        """Whether anything of this step is acknowledged or under way."""
        return bool(self._attempts or self._unacknowledged)

    def arriving(self, request: int) -> Arrive:
        """Return the message that says the step is complete; the gate is closed until its answer."""
        closing, self.closing = self.closing, None
        self.unfinished.clear()
        self.arrive = Arrive(request, self.clock, ())
        if not self._failed:
            self.arrive = self._all_brought(request, closing if isinstance(closing, Advance) else Advance())
            self._attempts.clear()
        self._failed = False
        return self.arrive

    def _all_brought(self, request: int, closing: Advance) -> Arrive:
        """Return an arrival with all of the step; of one that is not skipped and has no push there is an attempt."""
        for_all = closing.for_all and self.mode == "sync"
        examples = self.examples.so_far if closing.examples is None else closing.examples
        self.examples.clear()
        if closing.skips and not for_all:
            return Arrive(request, self.clock, ())
        attempts = tuple(sorted(self._attempts))
        if not attempts and (for_all or (self.examples.wanted and examples)):
            attempts = (self._next_attempt,)
            self._next_attempt += 1
        return Arrive(request, self.clock, attempts, examples, int(for_all))

    def proceed(self, message: Proceed) -> None:
        """The coordinator lets this worker go on."""
        assert self.arrive is not None
        if self.mode == "sync":
            self.clock = self.version = max(self.clock, message.version)
        else:
            self.clock, self.slowest = max(self.clock, self.arrive.step + 1), max(self.slowest, message.version)
        self._open()

    def go_back(self, clock: int, *, complete: bool) -> None:
        """The job is at an earlier step; ``complete``: gradients of a whole step were dropped by that already."""
        self.clock = self.version = clock
        self.unfinished.clear()
        self._attempts.clear()
        self.examples.clear()
        self._unacknowledged.clear()
        self._failed = False
        self.closing = None
        self.stale_values, self.stale_range = not complete, self.has_range and not complete
        self._open()

    def took(self, *, some: bool) -> None:
        """A range of examples was handed out, or there is none any more."""
        self.has_range, self.stale_range = some, False

    def resume(self, clock: int) -> bool:
        """The others did not wait for this worker for a while, and are at ``clock`` or beyond ours.

        Return whether gradients were lost by it: of a step that was not complete and is over now.
        """
        if self.mode == "async" or clock <= self.clock:
            return False
        self.attach(self.mode, clock, counts_all=self.examples.wanted)
        self.unfinished.clear()
        lost = bool(self._attempts)
        self._attempts.clear()
        self.examples.clear()
        self.passed |= lost
        return lost

    def failed(self) -> None:
        """The wait ended with an error; the next transfer waits again."""
        self._failed = True
        self._open()

    def _open(self) -> None:
        self.arrive, self.awaited = None, ""

    def validate(self) -> None:
        """Assert that nothing is held without a reason."""
        assert self.closed or not self.held
        for operation in self.held:
            assert not operation.done
