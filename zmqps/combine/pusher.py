"""A worker that combines its gradients with those of its host: one push a host, and values that come once.

Each is a member of the cluster like any other: it has a rank, is counted, waited for and evicted. What it does not do
is carry its own gradients: it writes them to shared memory, from where the leader of its host group adds and pushes
them (`zmqps.combine.group`). Its own step ends with nothing in it. What is not combined it does by itself, as without.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from zmqps import checks
from zmqps.client.puller import Puller
from zmqps.client.pusher import Pusher
from zmqps.client.requests import Params
from zmqps.client.tensors import are_finite
from zmqps.client.thread import refuse_in_callback
from zmqps.codecs import Codec
from zmqps.combine import meeting
from zmqps.combine.leader import Brought, Leader
from zmqps.combine.membership import LeaderGoneError, Membership
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
from zmqps.core.job.spec import MAX_COUNT, JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import check_codec
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Advance, StartJob
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
    """What a worker has of its host group; outlives no life in the cluster."""

    def __init__(self) -> None:
        self.membership: Membership | None = None
        self.leader: Leader | None = None
        self.stale: int | None = None  # the file of a leader that does not answer

    def leave(self) -> None:
        """Leave the group, and lead it no more; from any thread."""
        membership, self.membership = self.membership, None
        leader, self.leader = self.leader, None
        if membership is not None:
            membership.close()
        if leader is not None:
            leader.stop()

    def disown(self) -> None:
        """Close, in a forked child, what is the parent's: while a socket is open, others take that for alive."""
        for one in (self.membership, self.leader):
            if one is not None:
                one.disown()
        self.membership = self.leader = None


class HostPusher(Pusher):
    """A `Pusher` of a host group."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._group = HostGroup()
        self._models: HostModels | None = None
        self._fresh = False  # values that this worker has set, to be read back
        self._operations = Work("zmqps-host-step")  # one after the other
        weakref.finalize(self, self._group.leave).atexit = False
        weakref.finalize(self, self._operations.end).atexit = False
        super().__init__(*args, **options)
        if self._role == "observer":
            self.close()
            raise ConfigurationError("an observer pushes nothing, so there is nothing to combine: leave out combine")
        group = self._group

        def outdate(event: Any) -> None:
            if isinstance(event, Rollback) and (leader := group.leader) is not None:
                leader.rewind()

        self._listeners.append(outdate)

    # --- what is combined ---------------------------------------------------------------------

    def push(self, *args: Any, **options: Any) -> None:
        """Do as `Pusher.push`, by the group where it can be combined."""
        refuse_in_callback()
        self.push_async(*args, **options).result()

    def push_pull(self, *args: Any, **options: Any) -> Params:
        """Do as `Pusher.push_pull`, by the group where it can be combined."""
        refuse_in_callback()
        return self.push_pull_async(*args, **options).result()

    def pull(self, *args: Any, **options: Any) -> Params:
        """Do as `Puller.pull`, by the group where it can be combined."""
        refuse_in_callback()
        return self.pull_async(*args, **options).result()

    def push_async(
        self,
        grads: Mapping[str, Any],
        *,
        atomic: bool = False,
        examples: int = 1,
        codec: str | Codec | None = None,
        step: bool | None = None,
        timeout: float | None = None,
    ) -> Future[None]:
        """`push`, as a future."""
        bring = self._brings(grads, timeout, atomic, examples, codec, step)
        if bring is None:
            return super().push_async(grads, atomic=atomic, examples=examples, codec=codec, step=step, timeout=timeout)
        return self._begin(bring)

    def push_pull_async(
        self,
        grads: Mapping[str, Any],
        *,
        out: Mapping[str, Any] | None = None,
        examples: int = 1,
        codec: str | Codec | None = None,
        pull_codec: str | Codec | None = None,
        copy: bool = True,
        step: bool | None = None,
        timeout: float | None = None,
    ) -> Future[Params]:
        """`push_pull`, as a future."""
        bring = self._brings(grads, timeout, False, examples, codec, step)
        if bring is None:
            return super().push_pull_async(
                grads, out=out, examples=examples, codec=codec, pull_codec=pull_codec, copy=copy, step=step,
                timeout=timeout,
            )  # fmt: skip
        if out is not None and set(checks.mapping("out", out, "names to arrays")) != set(grads):
            raise ConfigurationError("push_pull returns what was pushed: out has the same names as grads")
        ends_at = self._ends_at(timeout)
        read = self._reads(list(grads), out, pull_codec, copy, ends_at, "push_pull")

        def both() -> Params:
            bring()
            return read()

        return self._begin(both)

    def pull_async(
        self,
        names: Any = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        exact: int | None = None,
        codec: str | Codec | None = None,
        copy: bool = True,
        timeout: float | None = None,
    ) -> Future[Params]:
        """`pull`, as a future."""
        if at_least is not None or exact is not None or codec is not None or not self._combines(timeout):
            return super().pull_async(
                names, out=out, at_least=at_least, exact=exact, codec=codec, copy=copy, timeout=timeout
            )
        return self._begin(self._reads(names, out, None, copy, self._ends_at(timeout), "pull"))

    def set_async(self, values: Mapping[str, Any], *, step: bool = False, timeout: float | None = None) -> Future[None]:
        """`set`, as a future."""
        checks.flag("step", step)
        if not self._combines(timeout):
            return super().set_async(values, step=step, timeout=timeout)
        done = super().set_async(values, timeout=timeout)
        self._fresh = True
        return self._ending(done, step, timeout)

    def average_async(
        self, values: Mapping[str, Any], *, examples: int = 1, step: bool = False, timeout: float | None = None
    ) -> Future[None]:
        """`average`, as a future."""
        checks.flag("step", step)
        if not self._combines(timeout):
            return super().average_async(values, examples=examples, step=step, timeout=timeout)
        return self._ending(super().average_async(values, examples=examples, timeout=timeout), step, timeout)

    def _ending(self, done: Future[None], step: bool, timeout: float | None) -> Future[None]:
        """Return a future of something that was begun, and of the end of the step if it ends the step."""
        if not step:
            return done
        ends_at = self._ends_at(timeout)

        def both() -> None:
            done.result()
            self._round(Advance(0.0), "", False, ends_at, "set")

        return self._begin(both)

    def _end_step(self, advance: Advance, timeout: float | None) -> Future[None]:
        if not self._combines(timeout):
            return super()._end_step(advance, timeout)
        self._send_kept(timeout)
        ends_at = self._ends_at(timeout)

        def end() -> None:
            if advance.skips and self._models is not None:
                self._models.counts.clear()
            self._round(advance, "", False, ends_at, advance.title)

        return self._begin(end)

    # --- what others are informed of --------------------------------------------------------------

    def barrier_async(self, name: str, *, timeout: float | None = None) -> Future[None]:
        """`barrier`, as a future."""
        return self._away(lambda: Pusher.barrier_async(self, name, timeout=timeout))

    def _take_async(self, *args: Any, **options: Any) -> Future[Any]:
        """Ask for a range of data; see `Connection._take_async`."""
        return self._away(lambda: Pusher._take_async(self, *args, **options))

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

    # --- the life -----------------------------------------------------------------------------

    def _attach(self, init: StartJob, timeout: float | None) -> Future[None]:
        if init.job is not None:
            check_combines(init.job)
        return super()._attach(init, timeout)

    def _rejoin(self, timeout: float) -> float:
        self._group.leave()
        return super()._rejoin(timeout)

    def finish_async(self, *, timeout: float | None = None) -> Future[None]:
        """`finish` without the close, as a future."""
        return self._last(lambda: Puller.finish_async(self, timeout=timeout))

    def drain_async(self, *, timeout: float | None = None) -> Future[None]:
        """`drain` without the close and the end of the program, as a future."""
        return self._last(lambda: Puller.drain_async(self, timeout=timeout))

    def _last(self, begin: Callable[[], Future[None]]) -> Future[None]:
        def end() -> None:
            self._group.leave()
            begin().result()

        return self._begin(end)

    def close(self, *, timeout: float | None = None) -> None:
        """Do what `zmqps.Worker.close` says."""
        if not self._thread.forked:
            self._group.leave()
        super().close(timeout=timeout)
        self._operations.end()

    def _disown(self) -> None:
        super()._disown()
        self._group.disown()

    # --- steps --------------------------------------------------------------------------------

    def _combines(self, timeout: float | None) -> bool:
        """Whether there is something to combine: this worker trains parameters of the job, not tables alone."""
        requests = self._requests or self._job(timeout)
        return self._named and bool(requests.job.parameters)

    def _begin(self, work: Callable[[], T]) -> Future[T]:
        self._refuse_in_fork()
        if self._closed:
            raise ClosedError("the worker is closed")
        return self._operations.submit(work)

    def _ends_at(self, timeout: float | None) -> float:
        return self._thread.time() + checks.seconds("a timeout", self._seconds(timeout))

    def _shared(self) -> HostModels:
        """Return the memory that is shared, for the job as it is."""
        requests = self._requests or self._job(None)
        if self._models is None or self._models.requests is not requests:
            self._models = HostModels(requests, self._arenas)
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
        requests = self._requests
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
        steps = self._requests is not None and self._requests.job.mode != "async"
        while True:
            group = self._member(ends_at, title)
            step = (self._reads_at() or 0) if steps else group.step
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
            push_sums(self, brought, advance if steps else None, ends_at)
        elif isinstance(answer, Done):
            group.step = answer.step + 1
            if steps and self._group.leader is None:  # the leader's push has ended its own step
                advance.examples = 0  # which count with the leader's
                self._submit(advance, left(self, ends_at)).result()

    def _member(self, ends_at: float, title: str) -> Membership:
        """Return the membership in the host's group; find it, or found it."""
        group = self._group
        welcome = self._thread.machine.member.welcome
        assert welcome is not None
        path = meeting.path_of(self._job_name, str(self._thread.machine.epoch), welcome.incarnation.hex())
        while group.membership is None:
            if self._closed:
                raise ClosedError("the worker was closed")
            met = meeting.meet(path, left(self, ends_at), stale=group.stale)
            group.stale = None
            if met.listener is not None:
                group.leader = lead(self, self._shared(), met, path)
            membership = Membership(met, self._title, os.getpid(), self._reads_at() or 0, welcome.heartbeat_timeout)
            try:
                answer = membership.ask(None, min(left(self, ends_at), welcome.heartbeat_timeout))
            except LeaderGoneError:
                answer = None
            if answer is None:
                membership.close()
                group.leave()
                group.stale = met.file
                if self._thread.time() >= ends_at:
                    raise DeadlineError(
                        operation=title, seconds=left(self, ends_at), waiting_for="the leader of this host's workers"
                    )
                continue
            group.membership = membership
        return group.membership

    def _proceed(self, job: JobSpec, ends_at: float) -> None:
        """Wait until this worker may proceed itself: values that another has read may come before that."""
        if job.mode != "async" and self._thread.machine.transfers.pace.closed:
            Pusher.pull_async(self, [], timeout=left(self, ends_at)).result()

    def _ask(self, group: Membership, message: HostMessage, ends_at: float, title: str) -> HostMessage:
        begun_at = self._thread.time()
        answer = group.ask(message, left(self, ends_at))
        if self._closed:
            raise ClosedError("the worker was closed")
        if answer is None:
            waiting_for = group.waiting
            self._group.leave()
            raise DeadlineError(operation=title, seconds=self._thread.time() - begun_at, waiting_for=waiting_for)
        if isinstance(answer, Dropped):
            self._group.leave()
            raise EvictedError(
                f"{self._title} was silent for {answer.silent_s:.1f} s, and the other workers of this host went on "
                "without it; worker.rejoin() comes back"
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
        requests = self._requests
        assert requests is not None
        flat, deliver = requests.receive(names, out, copy)

        def alone() -> Params:
            return Pusher.pull_async(self, names, out=out, codec=codec, copy=copy, timeout=left(self, ends_at)).result()

        def read() -> Params:
            models, fresh = self._shared(), self._fresh
            while codec is None:
                group = self._member(ends_at, title)
                step = group.step if requests.job.mode == "async" else self._reads_at() or 0
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
