"""From the first worker's ``init`` to a job that can be trained: place, build, load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from zmqps.core.coordinator.described import Described, Rival, difference, place, read, shown
from zmqps.core.coordinator.journal import KeptDict, KeptRecord, KeptSet, Plain
from zmqps.core.coordinator.kernel.story import Story
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.copies import Replica, ReplicaSet
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.coordinator.training.waits import Waiter as Told
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, attached
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Assign, Init, Job
from zmqps.core.protocol.messages.large import Large
from zmqps.errors import LimitError, PSError, counted, listed


class Beginning(NamedTuple):
    """The answer to a member's init."""

    step: int  # the clock it begins with
    num_workers: int
    note: str  # whose values these are, if the user may expect other ones
    terms: Sequence[float] = ()  # the numbers in force
    is_chief: bool = False


class Waiter(NamedTuple):
    """A member whose ``init`` is not answered yet."""

    member: MemberInfo
    has_values: bool  # and could upload them


#: A worker waits for one, or for a few that it has given up and whose `Withdraw` is lost.
MAX_PARKED = 16

Parked = dict[tuple[bytes, int], Waiter]  # by incarnation and request


class Startup(KeptRecord):
    """A job on its way to being trained.

    Placing waits for all servers; then every server builds its shard; then one worker, the
    loader, uploads the initial values; then every parked ``init`` is answered. A loader that
    vanishes is replaced by another worker whose ``init`` is parked.
    """

    kept: ClassVar = {
        **dict.fromkeys(("job", "_wire", "owner", "placement", "epoch", "resumption"), "spec"),
        **dict.fromkeys(("ready", "loader"), "start"),
        "copies": "copies",
        "cut": "recut",
    }

    def __init__(
        self,
        story: Story,
        options: CoordinatorOptions,
        new_copies: Callable[[], ReplicaSet],
        begin: Callable[[MemberInfo], Beginning],  # a member is sent the job
        # a member takes part: whether it has named the job or takes it as it is, and whether it is the first to name it
        count: Callable[[MemberInfo, bool, bool], list[Action]],
        num_workers: Callable[[], int],
        resumption: Resumption | None = None,  # None: a worker uploads the initial values
        changed: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.changed = changed
        self.story = story
        self.resumption = resumption
        self.num_servers = options.servers  # how many make the cluster
        self.num_workers = num_workers
        self.options = options
        self._begin = begin
        self._count = count
        self._new_copies = new_copies
        self.given_up: list[Replica] = []  # still on servers, but no longer needed
        # why newcomers wait although the job is under way: it goes back to a checkpoint, or its shards are recut
        self.held = self.cutting = ""
        self._forget()

    def _forget(self) -> None:
        self.job: JobSpec | None = None
        # its wire form: one object shared by all answers, and by all that is journaled of it
        self._wire: dict[str, Any] = {}
        self._optimizer: dict[str, Any] = {}  # for the status
        self.owner = ""  # empty: no worker has described the job, though a checkpoint may
        self.ready = False  # whether the job can be trained
        mark = partial(self.changed, "start")
        self.parked: Parked = KeptDict(mark)
        self._requests: dict[bytes, set[int]] = {}  # those that are parked, by incarnation
        self.loader: tuple[bytes, int] | None = None
        self.told: set[bytes] = KeptSet(mark)  # members that have tickets for the servers
        self.returning: set[bytes] = KeptSet(mark)  # members whose init was parked when this coordinator went away
        self._forget_place()

    def _forget_place(self) -> None:
        self.epoch = 0  # identifies the job: the first number of its first shard
        self.placement: Placement | None = None
        self._rows: Sequence[Mapping[str, Any]] = ()  # of the placement, for the status
        self._cuts: dict[str, Any] = {}
        self.copies = self._new_copies()
        self.cut = 0  # the number of its last recut
        self.changed("step")

    @property
    def rival(self) -> Rival:
        """What a job that a worker describes is compared with."""
        return self.job if self.job is not None else self.resumption

    def known(self, large: Large) -> Init | None:
        """Return the `Init` that names the very job that there is, if it is that; None: it has to be read."""
        wire = self._wire
        return Init(large.request, wire) if isinstance(wire, Described) and large.is_init_of(wire.packed) else None

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.story.job

    def leaders(self) -> Iterator[tuple[int, int, MemberInfo]]:
        """Yield shard, epoch and server of each copy that answers workers, in the order of the shards."""
        return self.copies.leaders()

    def init(self, member: MemberInfo, message: Init) -> list[Action]:
        """A worker names its job; its request is parked until the job is ready."""
        resumption = self.resumption
        if message.job:
            job = read(message.job)
            job.check_startable(self.options.workers if job.workers is None else job.workers)
            if (differs := difference(self.rival, message.job, self.owner, self.name)) is not None:
                raise differs
        else:
            offered = resumption.offered() if self.job is None and resumption is not None else self.job
            job = attached(offered)
        first, self.job = self.job is None, self.job or job
        if first:
            self._wire = message.job if isinstance(message.job, Described) else job.to_wire()
            self._optimizer = shown(job.optimizer)
        # before the worker learns how many there are; a restored job needs no description
        actions = self._count(member, bool(message.job) or resumption is not None, first)
        if first:
            self.owner = member.title  # by the rank that it has now
        self.returning.discard(member.incarnation)
        has_values = bool(message.job) and member.role == "worker"
        key = member.incarnation, message.request
        is_pace = key == (next(iter(self.parked), None) or self.loader)  # the loader's, when this coordinator was away
        requests = self._requests.setdefault(member.incarnation, set())
        if key not in self.parked and len(requests) >= MAX_PARKED:
            raise LimitError(what="number of inits of a member", got=len(requests) + 1, limit=MAX_PARKED)
        requests.add(message.request)
        self.parked[key] = Waiter(member, has_values)
        actions += self._say_again() if is_pace else []
        if self.loader is None and has_values and self.placement is not None and not self.ready:
            actions += self._choose_loader()
        return actions + self.answer()

    def place(self, servers: Sequence[MemberInfo]) -> list[Action]:
        """Place the job as soon as all servers have joined."""
        if self.job is None or self.placement is not None or len(servers) < self.num_servers:
            return []
        chosen, options = servers[: self.num_servers], self.options
        try:
            placement = place(self.name, self.job, self._wire, chosen, 1 + options.replicas, options.slice_size)
        except PSError as error:
            return self.fail(error)
        self.placement, self._rows, self._cuts = placement, placement.rows(), placement.to_wire()
        self.epoch = self.copies.place(chosen, self.options.replicas)
        self.story.tell(f"begins on {listed([server.title for server in chosen], 8)}", expected=True)
        text = f"job {self.name!r} of {self.owner}: {counted(len(self.job.parameters), 'parameter')}, "
        text += f"{self.job.nbytes / 1e6:.3f} MB, {self.job.mode}"
        return [Log("info", text, "began", job=self.name), *self.assign(self.copies)]

    def begin_again(self) -> bool:
        """Forget the planned placement, as a server is lost; False if some values are only on servers."""
        if self.ready or self.placement is None or self.loader is not None:
            return False
        self.given_up += self.copies
        self._forget_place()
        self.story.tell("begins again on other servers")
        return True

    def drop(self, copy: Replica, *, moved: bool = False) -> None:
        """A copy is not wanted any more; ``moved``: another one takes its place, and the job continues."""
        self.copies.remove(copy)
        copy.moved = moved
        self.given_up.append(copy)

    @property
    def num_shards(self) -> int:
        """How many shards the job has; 0 until it is placed."""
        return 0 if self.placement is None else self.placement.num_shards

    def recut(self, placement: Placement, number: int) -> None:
        """The job has other shards: exactly the copies that were prepared for them."""
        self.cut = number
        for copy in list(self.copies):
            self.drop(copy, moved=True)
        self.copies.switch()
        self.placement, self._rows, self._cuts = placement, placement.rows(), placement.to_wire()
        self.moved()
        self.changed("step")

    def drop_coming(self) -> None:
        """The shards stay as they are."""
        for copy in self.copies.coming.values():
            copy.moved = True
            self.given_up.append(copy)
        self.copies.coming = {}

    def where(self, member: MemberInfo, *, load: bool = False) -> dict[str, Any]:
        """Return the job's placement, as sent to members."""
        falls_back, servers = int(self.options.fallback_timeout > 0), self.copies.rows(member, load=load)
        more = {"replicas": self.options.replicas, "falls_back": falls_back, "cut": self.cut, "servers": servers}
        return {**self._cuts, **more}

    def assign(
        self, copies: Iterable[Replica], source: Mapping[str, Any] | None = None, placement: Placement | None = None
    ) -> list[Action]:
        """Tell servers which copies to hold.

        ``source``: from where, if not what the job began from; ``placement``: of which shards, if of others.
        """
        assert self.placement is not None
        assert self.job is not None
        wire, cuts, workers = self._wire, self._cuts, self.num_workers()
        if self.job.counts_steps and self.job.workers is None:
            wire = {**wire, "workers": self.options.workers}
        cuts = cuts if placement is None else placement.to_wire()
        if source is None:
            source = self.resumption.source() if self.resumption else {}
        hosts = Counter(
            server.hello.host for server in {copy.server.incarnation: copy.server for copy in self.copies}.values()
        )
        actions: list[Action] = []
        for copy in copies:
            server, sharing = copy.server, hosts[copy.server.hello.host]
            key = self.copies.key(copy)
            backups = {} if copy.backup else self.copies.rows_of_backups(copy)
            assign = Assign(
                copy.epoch, self.name, workers, sharing, copy.shard, wire, cuts, key,
                {} if copy.backup and placement is None else source, copy.generation, int(copy.backup), backups,
            )  # fmt: skip
            actions.append(Send(server.peer, assign))
        return actions

    def _say_again(self) -> list[Action]:
        """Repeat what is not answered yet, as a connection that broke may have lost it or the answer.

        No timer drives this: a worker that waits repeats its request every few seconds, and the first of them sets
        the pace.
        """
        if self.placement is None or self.ready:
            return []
        actions = self.assign([copy for copy in self.copies if not copy.whole])
        if self.loader in self.parked:
            actions.append(self._reply(self.parked[self.loader].member, self.loader[1], load=1))
        return actions

    def progress(self, copy: Replica, loaded: bool) -> list[Action]:
        """A server has built a copy of a shard, or has all its values."""
        copy.built, copy.whole = True, copy.whole or loaded
        self.ready = all(copy.whole for copy in self.copies)
        if self.ready:
            self.story.tell("can be trained", expected=True)
        if not self._is_built:
            return []
        return self.answer() or ([] if self.loader else self._choose_loader())

    @property
    def _is_built(self) -> bool:
        """Whether servers have built all copies."""
        return all(copy.built for copy in self.copies)

    def withdraw(self, incarnation: bytes, request: int | None = None) -> list[Action]:
        """A worker no longer waits for its init, or has left."""
        for number in [n for n in self._requests.get(incarnation, ()) if request in (None, n)]:
            del self.parked[incarnation, number]
            self._requests[incarnation].remove(number)
        if not self._requests.get(incarnation, True):
            del self._requests[incarnation]
        if request is None:
            self.told.discard(incarnation)
            self.returning.discard(incarnation)
        if not self.parked and not self.returning and not self.ready:
            self.give_up()  # no worker wants it any more; the next may describe another job
        if self.loader is not None and not self._loader_waits and not self.ready:
            self.loader = None
            return self._choose_loader()
        return []

    @property
    def _loader_waits(self) -> bool:
        """Whether the loader still waits for its answer, as far as is known."""
        return self.loader is not None and (self.loader in self.parked or self.loader[0] in self.returning)

    def resumed(self, member: MemberInfo) -> list[Action]:
        """A member is back, and waits for no init if it has not asked again."""
        if member.incarnation not in self.returning:
            return []
        self.returning.remove(member.incarnation)
        return self.withdraw(member.incarnation, 0)

    def again(self, server: MemberInfo) -> list[Action]:
        """A server is back: it is asked again for what it has not said it has."""
        if self.placement is None or self.ready:
            return []
        return self.assign([copy for copy in self.copies.of(server) if not copy.whole])

    def dump_spec(self) -> Plain:
        """Return the job to journal; None if no worker has described it."""
        if self.job is None:
            return None
        cuts = None if self.placement is None else self.placement.to_wire()
        resumption = None if self.resumption is None else self.resumption.dump()
        return [dict(self._wire), self.owner, cuts, self.epoch, resumption]

    def dump(self) -> Plain:
        """Return the progress of its start to journal; those that wait for it repeat their requests."""
        if self.job is None:
            return None
        waiting = sorted({who for who, _ in self.parked} | self.returning)
        loader = None if self.loader is None else list(self.loader)
        return [self.ready, waiting, loader, sorted(self.told)]

    def restore(self, spec: Plain, start: Plain) -> None:
        """Continue with what was kept; the copies are kept by themselves."""
        wire, self.owner, cuts, self.epoch, resumption = spec
        self.resumption = None if resumption is None else Resumption.restored(resumption)
        self.job = JobSpec.from_wire(wire)
        self._wire = wire if "mode" in wire else self.job.to_wire()  # in an older journal
        self._optimizer = shown(self.job.optimizer)
        if cuts is not None:
            self.placement = Placement.from_wire(KeySpace.of(self.job), cuts)
            self._rows, self._cuts = self.placement.rows(), self.placement.to_wire()
        self.ready, waiting, loader, told = start
        self.told.update(told)
        self.loader = None if loader is None else (loader[0], loader[1])
        self.returning.update(() if self.ready else waiting)

    def fail(self, error: PSError) -> list[Action]:
        """A server could not build its shard: forget the job and refuse all that wait for it."""
        told = self.refuse(error)
        self.give_up()
        return told

    def refuse(self, error: PSError) -> list[Action]:
        """Tell all that wait for the job that it cannot be trained."""
        waiters = [(waiter.member, request) for (_, request), waiter in self.parked.items()]
        self.parked.clear()
        self._requests.clear()
        return [member.fail(request, error) for member, request in waiters]

    def give_up(self) -> None:
        """Forget the job; what servers have built of it is in `given_up`."""
        if self.placement is not None:
            self.given_up += self.copies
        self.drop_coming()
        self._forget()

    def _choose_loader(self) -> list[Action]:
        if self.ready or not self.copies or not self._is_built:
            return []
        for key, (member, has_values) in self.parked.items():
            if has_values:
                self.loader = key
                text, who = f"{member.title} uploads the initial values", member.hello.name
                return [Log("info", text, job=self.name, peer=who), self._reply(member, key[1], load=1)]
        return []

    def answer(self) -> list[Action]:
        """Send the job to all that wait for it, once it can be trained."""
        if not self.ready or self.held or self.cutting:
            return []
        replies: list[Action] = [self._reply(w.member, request) for (_, request), w in self.parked.items()]
        self.parked.clear()
        self._requests.clear()
        self.returning.clear()
        return replies

    def _reply(self, member: MemberInfo, request: int, load: int = 0) -> Action:
        assert self.placement is not None
        before = None if load else member.answers.with_job(self._wire)
        placement = self.where(member, load=bool(load)) if before is None else before.placement
        self.told.add(member.incarnation)
        step, num_workers, note, terms, chief = Beginning(0, 0, "") if load else self._begin(member)
        restored = self.resumption.told() if self.resumption else {}
        job = Job(
            request, self.epoch, self._wire, placement, load, step, num_workers, note, member.rank, restored,
            int(chief), terms,
        )  # fmt: skip
        return Send(member.peer, job) if load else member.answer(request, job)

    def moved(self) -> None:
        """A shard has another server: what members were sent before is not repeated."""
        self._wire = self._wire.again() if isinstance(self._wire, Described) else dict(self._wire)

    def described(self) -> dict[str, Any]:
        """Return the job and its placement, as they travel."""
        return {"job": dict(self._wire), "placement": dict(self._cuts)}

    def waiters(self, servers: Sequence[MemberInfo]) -> Iterator[Told]:
        """Yield the members whose init is parked, with the request, and a function that names those it waits for."""
        say = partial(self.waiting_for, servers)
        for (_, request), waiter in self.parked.items():
            yield waiter.member, request, say

    def waiting_for(self, servers: Sequence[MemberInfo]) -> str:
        """Name the members that a parked init waits for."""
        if self.held or self.cutting:
            return self.held or self.cutting
        if len(servers) < self.num_servers:
            return f"{self.num_servers - len(servers)} of {counted(self.num_servers, 'server')} to join"
        if not self._is_built:
            late = {copy.server.incarnation: copy.server for copy in self.copies if not copy.built}
            names = [server.title for server in late.values()]
            return f"{', '.join(names)} to build {'its shard' if len(names) == 1 else 'their shards'}"
        if self.placement is not None and all(copy.whole for copy in self.copies if not copy.backup):
            return "the backups to have the initial values"
        if self.loader is not None and self.loader in self.parked:
            return f"{self.parked[self.loader].member.title} to upload the initial values"
        return "a worker to upload the initial values"

    def status(self) -> Mapping[str, Any]:
        """Return the job for the status."""
        if self.job is None:
            return {}
        return {
            "parameters": len(self.job.parameters),
            "mode": self.job.mode,
            "staleness": self.job.staleness,
            "nonfinite": self.job.nonfinite,
            "treatment": self.job.treatment,
            "optimizer": self._optimizer,
            "owner": self.owner,
            "nbytes": self.job.nbytes,
            "placement": self._rows,
            "ready": self.ready,
        }
