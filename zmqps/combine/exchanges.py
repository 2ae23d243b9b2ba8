"""The exchanges of a worker that combines its gradients with those of its host: one push a host, values come once.

Each worker is a member of the cluster like any other: it has a rank, is counted, waited for and evicted. What it does
not do is carry its own gradients: it writes them to shared memory, from where the leader of its host group adds and
pushes them (`zmqps.combine.group`). Its own step ends with nothing in it. What is not combined it does by itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import numpy as np

from zmqps import checks
from zmqps.client.connection import Connection
from zmqps.client.exchanges import Exchanges
from zmqps.client.member import Member
from zmqps.client.requests import Params
from zmqps.client.tensors import are_finite
from zmqps.client.thread import SessionThread, refuse_in_callback
from zmqps.codecs import Codec
from zmqps.combine import meeting
from zmqps.combine.leader import Brought, Leader
from zmqps.combine.meeting import LeaderGoneError, Membership
from zmqps.combine.memory import runs
from zmqps.combine.messages import (
    Alone,
    Away,
    Done,
    Dropped,
    Failed,
    Got,
    Here,
    HostGradients,
    HostMessage,
    HostValues,
    Want,
)
from zmqps.combine.rounds import HostModels, check_combines, lead, left, push_sums
from zmqps.combine.work import Work
from zmqps.core.job.data import DataRange, DataSpec
from zmqps.core.job.spec import MAX_COUNT, JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import check_codec
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Advance
from zmqps.errors import (
    ClosedError,
    ConfigurationError,
    DeadlineError,
    EvictedError,
    HostLeaderLostError,
    NonFiniteGradientError,
    from_wire,
    listed,
)

T = TypeVar("T")

#: Dtypes for which there is a quick look for NaN and infinity.
CHECKED = (np.float32, np.float64)


class HostGroup:
    """What a worker has of its host group; a `zmqps.client.member.Company`.

    Attributes
    ----------
    membership, leader
        Of the group, and of its leader if that is this worker; they outlive no life in the cluster.
    stale
        The file of a leader that does not answer.
    work
        Does the worker's steps, one after the other.
    """

    def __init__(self) -> None:
        self.membership: Membership | None = None
        self.leader: Leader | None = None
        self.stale: int | None = None
        self.work = Work("zmqps-host-step")

    def leave(self) -> None:
        """Leave the group, and lead it no more; from any thread."""
        membership, self.membership = self.membership, None
        leader, self.leader = self.leader, None
        if membership is not None:
            membership.close()
        if leader is not None:
            leader.stop()

    def end(self) -> None:
        """Begin nothing more."""
        self.work.end()

    def disown(self) -> None:
        """Close, in a forked child, what is the parent's: while a socket is open, others take that for alive."""
        for one in (self.membership, self.leader):
            if one is not None:
                one.disown()
        self.membership = self.leader = None


class HostExchanges:
    """As `zmqps.client.exchanges.Exchanges`, whose arguments it takes, with those of a host group.

    Parameters
    ----------
    direct
        What this worker does by itself.
    group
        What it has of its host group.

    Attributes
    ----------
    member
        Its connection and job.
    """

    def __init__(self, direct: Exchanges, group: HostGroup) -> None:
        self.member = direct.member
        self._connection = direct.member.connection
        self._direct = direct
        self._group = group
        self._models: HostModels | None = None
        self._fresh = False  # values that this worker has set to be read back
        weakref.finalize(self, group.leave).atexit = False
        weakref.finalize(self, group.end).atexit = False

        def outdate(event: Any) -> None:
            if isinstance(event, Rollback) and (leader := group.leader) is not None:
                leader.rewind()

        self._connection.listeners.append(outdate)

    @classmethod
    def of(cls, connection: Connection) -> Self:
        """Return those of a connection."""
        group = HostGroup()
        return cls(Exchanges(Member(connection, group)), group)

    # --- what is combined ---------------------------------------------------------------------

    def push(
        self, grads: Mapping[str, Any], atomic: bool, examples: int, codec: str | Codec | None, step: bool | None,
        timeout: float | None,
    ) -> None:  # fmt: skip
        """Send gradients."""
        refuse_in_callback()
        self.begin_push(grads, atomic, examples, codec, step, timeout).result()

    def begin_push(
        self, grads: Mapping[str, Any], atomic: bool, examples: int, codec: str | Codec | None, step: bool | None,
        timeout: float | None,
    ) -> Future[None]:  # fmt: skip
        """Begin to send gradients."""
        bring = self._brings(grads, timeout, atomic, examples, codec, step)
        if bring is None:
            return self._direct.begin_push(grads, atomic, examples, codec, step, timeout)
        return self._begin(bring)

    def push_pull(
        self, grads: Mapping[str, Any], out: Mapping[str, Any] | None, examples: int, codec: str | Codec | None,
        pull_codec: str | Codec | None, copy: bool, step: bool | None, timeout: float | None,
    ) -> Params:  # fmt: skip
        """Send gradients and return the values after them."""
        refuse_in_callback()
        return self.begin_push_pull(grads, out, examples, codec, pull_codec, copy, step, timeout).result()

    def begin_push_pull(
        self, grads: Mapping[str, Any], out: Mapping[str, Any] | None, examples: int, codec: str | Codec | None,
        pull_codec: str | Codec | None, copy: bool, step: bool | None, timeout: float | None,
    ) -> Future[Params]:  # fmt: skip
        """Begin to send gradients and to ask for the values after them."""
        bring = self._brings(grads, timeout, False, examples, codec, step)
        if bring is None:
            return self._direct.begin_push_pull(grads, out, examples, codec, pull_codec, copy, step, timeout)
        if out is not None and set(checks.mapping("out", out, "names to arrays")) != set(grads):
            raise ConfigurationError("push_pull returns what was pushed: out has the same names as grads")
        ends_at = self._ends_at(timeout)
        read = self._reads(list(grads), out, pull_codec, copy, ends_at, "push_pull")

        def both() -> Params:
            bring()
            return read()

        return self._begin(both)

    def pull(
        self, names: str | Iterable[str] | None, out: Mapping[str, Any] | None, at_least: int | None,
        exact: int | None, codec: str | Codec | None, copy: bool, timeout: float | None,
    ) -> Params:  # fmt: skip
        """Return values."""
        refuse_in_callback()
        return self.begin_pull(names, out, at_least, exact, codec, copy, timeout).result()

    def begin_pull(
        self, names: str | Iterable[str] | None, out: Mapping[str, Any] | None, at_least: int | None,
        exact: int | None, codec: str | Codec | None, copy: bool, timeout: float | None,
    ) -> Future[Params]:  # fmt: skip
        """Begin to ask for values."""
        if at_least is not None or exact is not None or codec is not None or not self._combines(timeout):
            return self._direct.begin_pull(names, out, at_least, exact, codec, copy, timeout)
        return self._begin(self._reads(names, out, None, copy, self._ends_at(timeout), "pull"))

    def begin_pull_each(
        self, names: str | Iterable[str] | None, out: Mapping[str, Any] | None, at_least: int | None,
        codec: str | Codec | None, timeout: float | None,
    ) -> dict[str, Future[Any]]:  # fmt: skip
        """Begin to ask for values that are awaited one by one, which are never combined."""
        return self._direct.begin_pull_each(names, out, at_least, codec, timeout)

    def begin_set(self, values: Mapping[str, Any], step: bool, timeout: float | None) -> Future[None]:
        """Begin to write values."""
        checks.flag("step", step)
        if not self._combines(timeout):
            return self._direct.begin_set(values, step, timeout)
        done = self._direct.begin_set(values, False, timeout)
        self._fresh = True
        return self._ending(done, step, timeout)

    def begin_average(
        self, values: Mapping[str, Any], examples: int, step: bool, timeout: float | None
    ) -> Future[None]:
        """Begin to write the mean of workers' values."""
        checks.flag("step", step)
        if not self._combines(timeout):
            return self._direct.begin_average(values, examples, step, timeout)
        return self._ending(self._direct.begin_average(values, examples, False, timeout), step, timeout)

    def _ending(self, done: Future[None], step: bool, timeout: float | None) -> Future[None]:
        """Return a future of something that was begun, and of the end of the step if it ends the step."""
        if not step:
            return done
        ends_at = self._ends_at(timeout)

        def both() -> None:
            done.result()
            self._round(Advance(0.0), "", False, ends_at, "set")

        return self._begin(both)

    def end_step(self, advance: Advance, timeout: float | None) -> Future[None]:
        """End this worker's step."""
        if self.member.observes or not self._combines(timeout):
            return self._direct.end_step(advance, timeout)
        self.member.send_deferred(timeout)
        ends_at = self._ends_at(timeout)

        def end() -> None:
            if advance.skips and self._models is not None:
                self._models.counts.clear()
            self._round(advance, "", False, ends_at, advance.title)

        return self._begin(end)

    # --- what others are informed of --------------------------------------------------------------

    def enter(self, barrier: str, timeout: float | None) -> Future[None]:
        """Enter a barrier."""
        return self._away(lambda: self._direct.enter(barrier, timeout))

    def take(self, data: DataSpec, used: DataRange | None, timeout: float | None) -> Future[DataRange | None]:
        """Report the used range and request the next; None: all passes are done."""
        return self._away(lambda: self._direct.take(data, used, timeout))

    def _away(self, begin: Callable[[], Future[T]]) -> Future[T]:
        """Begin something in which no round waits for this worker."""
        membership = self._group.membership
        if membership is not None:
            membership.tell(Away())
        try:
            future = begin()
        except BaseException:
            self._back(membership)
            raise
        future.add_done_callback(lambda _: self._back(membership))
        return future

    def _back(self, membership: Membership | None) -> None:
        if membership is not None:  # on the session's own thread, mostly, where nothing can be asked
            membership.tell(Here(self._thread.machine.transfers.pace.reads_at))

    # --- from the beginning to the end --------------------------------------------------------

    def start(self, job: JobSpec, values: list[Any], timeout: float | None) -> Future[None]:
        """Start a job, or join it."""
        check_combines(job)
        return self._direct.start(job, values, timeout)

    def finish(self, reason: DepartureCause, timeout: float | None) -> Future[None]:
        """Complete what is pending, and say goodbye."""

        def end() -> None:
            self._group.leave()
            self._direct.finish(reason, timeout).result()

        return self._begin(end)

    # --- steps --------------------------------------------------------------------------------

    def _combines(self, timeout: float | None) -> bool:
        """Whether there is something to combine: this worker trains parameters of the job, not tables alone."""
        requests = self.member.job(timeout)
        return self.member.named and bool(requests.job.parameters)

    def _begin(self, work: Callable[[], T]) -> Future[T]:
        self._thread.refuse_in_fork()
        self._connection.check_open()
        return self._group.work.submit(work)

    @property
    def _thread(self) -> SessionThread:
        return self._connection.thread

    def _left(self, ends_at: float) -> float:
        return left(self._connection, ends_at)

    def _ends_at(self, timeout: float | None) -> float:
        return self._thread.time() + checks.seconds("a timeout", self._connection.seconds(timeout))

    def _shared(self) -> HostModels:
        """Return the memory that is shared, for the job as it is."""
        requests = self.member.job(None)
        if self._models is None or self._models.requests is not requests:
            self._models = HostModels(requests, self._connection.arenas)
        return self._models

    def _brings(
        self,
        grads: Mapping[str, Any],
        timeout: float | None,
        atomic: bool,
        examples: int,
        codec: str | Codec | None,
        step: bool | None,
    ) -> Callable[[], None] | None:
        """Return what brings gradients to this host's round, or to a later part of the step; None: push them alone."""
        if not self._combines(timeout):
            return None
        requests = self.member.requests
        assert requests is not None
        checks.flag("atomic", atomic)
        examples = checks.whole("examples", examples, 1, MAX_COUNT)
        flat, lacking = requests.gradients(grads)
        ends = not lacking if step is None else checks.flag("step", step)
        ends |= requests.job.mode == "async"
        chosen = "" if codec is None else check_codec(codec, pulls=False)
        ends_at = self._ends_at(timeout)

        def bring() -> None:
            self._add(flat, examples, requests.job)
            if self._models is not None:
                self._models.examples = max(self._models.examples, examples)
            if ends:
                self._round(Advance(0.0), chosen, atomic, ends_at, "push")

        return bring

    def _add(self, flat: Mapping[int, Array], examples: int, job: JobSpec) -> None:
        """Add gradients to those that this worker has of the step, each as often as it counts."""
        if job.nonfinite == "reject" and not _finite(list(flat.values())):
            names = [job.parameters[number].name for number, array in flat.items() if not _finite([array])]
            raise NonFiniteGradientError(worker=self._title, parameters=listed(names, 5))
        models = self._shared()
        for number, array in flat.items():
            mine = models.gradients.flat[number]
            if number in models.counts:
                mine += array if examples == 1 else array * mine.dtype.type(examples)
            elif examples == 1:
                np.copyto(mine, array, casting="same_kind")
            else:
                np.multiply(array, mine.dtype.type(examples), out=mine, casting="same_kind")
            models.counts[number] = models.counts.get(number, 0) + examples

    def _round(self, advance: Advance, codec: str, atomic: bool, ends_at: float, title: str) -> None:
        """Bring what this worker has of the step to its host's round, and end the step."""
        models = self._shared()
        counts, models.counts = models.counts, {}
        rows = self._thread.machine.transfers.pace.step.examples.so_far  # each worker pushes those of tables itself
        examples = 0 if advance.skips else max(models.examples, rows, *counts.values())
        models.examples = 0
        steps = self.member.requests is not None and self.member.requests.job.mode != "async"
        while True:
            group = self._member(ends_at, title)
            step = (self.member.reads_at() or 0) if steps else group.step
            bring = HostGradients(
                step=step, places=models.gradients.places, counts=runs(counts), examples=examples,
                for_all=advance.for_all, codec=codec, atomic=atomic,
            )  # fmt: skip
            try:
                answer = self._ask(group, bring, ends_at, title)
            except LeaderGoneError as gone:
                self._group.leave()
                if gone.pushing:
                    self._models = None  # it may be asleep, and read this memory when it wakes
                    raise HostLeaderLostError(leader=group.leader) from None
                continue  # nothing has left this host: another one does it
            except DeadlineError:
                self._models = None  # the leader may yet read this memory
                raise
            break
        if isinstance(answer, Alone):
            brought = [Brought(bring, models.gradients.flat)]
            push_sums(self._direct, brought, advance if steps else None, ends_at)
        elif isinstance(answer, Done):
            group.step = answer.step + 1
            if steps and self._group.leader is None:  # the leader's push has ended its own step
                advance.examples = 0  # which count with the leader's
                self.member.submit(advance, self._left(ends_at)).result()

    def _member(self, ends_at: float, title: str) -> Membership:
        """Return the membership in the host's group; find it, or found it."""
        group = self._group
        welcome = self._thread.machine.member.welcome
        assert welcome is not None
        path = meeting.path_of(self.member.job_name, str(self._thread.machine.epoch), welcome.incarnation.hex())
        while group.membership is None:
            if self._connection.closed:
                raise ClosedError("the worker was closed")
            met = meeting.meet(path, self._left(ends_at), stale=group.stale)
            group.stale = None
            if met.listener is not None:
                group.leader = lead(self._direct, self._shared(), met, path)
            membership = Membership(
                met, self._title, os.getpid(), self.member.reads_at() or 0, welcome.heartbeat_timeout
            )
            try:
                answer = membership.ask(None, min(self._left(ends_at), welcome.heartbeat_timeout))
            except LeaderGoneError:
                answer = None
            if answer is None:
                membership.close()
                group.leave()
                group.stale = met.file
                if self._thread.time() >= ends_at:
                    raise DeadlineError(
                        operation=title,
                        seconds=self._left(ends_at),
                        waiting_for="the leader of this host's workers",
                    )
                continue
            group.membership = membership
        return group.membership

    def _proceed(self, job: JobSpec, ends_at: float) -> None:
        """Wait until this worker may proceed itself: values that another has read may come before that."""
        if job.mode != "async" and self._thread.machine.transfers.pace.closed:
            self._direct.begin_pull([], None, None, None, None, True, self._left(ends_at)).result()

    def _ask(self, group: Membership, message: HostMessage, ends_at: float, title: str) -> HostMessage:
        begun_at = self._thread.time()
        answer = group.ask(message, self._left(ends_at))
        if self._connection.closed:
            raise ClosedError("the worker was closed")
        if answer is None:
            waiting_for = group.waiting
            self._group.leave()
            raise DeadlineError(operation=title, seconds=self._thread.time() - begun_at, waiting_for=waiting_for)
        if isinstance(answer, Dropped):
            self._group.leave()
            raise EvictedError(
                f"{self._title} was silent for {answer.silent_s:.1f} s, and the other workers of this host continued "
                "without it; call worker.rejoin() to come back"
            )
        if isinstance(answer, Failed):
            raise from_wire(answer.code, answer.text, answer.facts)
        return answer

    @property
    def _title(self) -> str:
        return self._thread.machine.title

    # --- values -------------------------------------------------------------------------------

    def _reads(
        self,
        names: Any,
        out: Mapping[str, Any] | None,
        codec: str | Codec | None,
        copy: bool,
        ends_at: float,
        title: str,
    ) -> Callable[[], Params]:
        """Return what reads values: those of this host, or its own."""
        requests = self.member.requests
        assert requests is not None
        flat, deliver = requests.receive(names, out, copy)

        def alone() -> Params:
            return self._direct.begin_pull(names, out, None, None, codec, copy, self._left(ends_at)).result()

        def read() -> Params:
            models, fresh = self._shared(), self._fresh
            while codec is None:
                group = self._member(ends_at, title)
                step = group.step if requests.job.mode == "async" else self.member.reads_at() or 0
                try:
                    answer = self._ask(group, Want(step, fresh), ends_at, title)
                except LeaderGoneError:
                    self._group.leave()
                    continue
                self._fresh = False
                if not isinstance(answer, HostValues):
                    break
                values = models.values.flat("leader", answer.places)
                for number, array in flat.items():
                    np.copyto(array, values[number], casting="same_kind")
                group.tell(Got(answer.number))
                self._proceed(requests.job, ends_at)
                return deliver(answer.version)
            return alone()

        return read


def _finite(arrays: Sequence[Array]) -> bool:
    fast = [array for array in arrays if array.dtype in CHECKED]
    return are_finite(fast) and all(np.isfinite(array).all() for array in arrays if array.dtype not in CHECKED)
