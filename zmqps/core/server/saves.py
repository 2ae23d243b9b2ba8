"""A server's part in a checkpoint: keeps its shard in one state, and has it written slice by slice meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import COORDINATOR, Action, Resolve, Run, Send
from zmqps.core.protocol.messages import FileAnswer, FileAsk, Save, Saved
from zmqps.core.protocol.messages.saving import SaveStage
from zmqps.core.server.dense.snapshot import Snapshot, SnapshotSlice
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.row_snapshot import Marks, RowMarks, RowPiece, RowSnapshots
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tenant import Tenant
from zmqps.errors import JobError, ProtocolError, PSError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


@dataclass(slots=True, eq=False, kw_only=True)
class FileRequest:
    """A thread's request to the coordinator's disk; an event. Resolved by a `FileAnswer`.

    Parameters
    ----------
    what
        The method of `zmqps.checkpoint.storage.Storage` or ``File``.
    path, offset, nbytes, payload
        Its arguments. The payload does not change until the answer arrives.
    future
        The thread's, and opaque here.
    """

    what: str
    path: str
    offset: int = 0
    nbytes: int = 0
    payload: Sequence[Buffer] = field(default=(), repr=False)
    future: Any = None


class FileRelay:
    """The unanswered requests of one server; a thread has one at a time."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._asked: dict[int, FileRequest] = {}

    def ask(self, request: FileRequest, now: float) -> list[Action]:
        """Send a request to the coordinator."""
        number = next(self._numbers)
        self._asked[number] = request
        return [_message(number, request)]

    def again(self) -> list[Action]:
        """Repeat requests over a new connection: each may be carried out twice without harm."""
        return [_message(number, request) for number, request in self._asked.items()]

    def answer(self, message: FileAnswer, now: float) -> list[Action]:
        """Pass an answer to the thread that waits for it."""
        request = self._asked.pop(message.request, None)
        return [] if request is None else [Resolve(request, message)]


def _message(number: int, request: FileRequest) -> Action:
    asked = FileAsk(number, request.what, request.path, request.offset, request.nbytes, request.payload)
    return Send(COORDINATOR, asked)


#: Slices handed out at a time: one is written while another is copied.
IN_HAND = 2
#: The most frequent progress reports to the coordinator.
REPORT_S = 1.0
MAX_WHY_CHARS = 500
#: The snapshot of a part, kept until it is written.
PartSnapshot: TypeAlias = Snapshot | RowSnapshots


class Writer(Protocol):
    """Writes a shard's part of a checkpoint; called from other threads, one at a time."""

    def write(self, piece: Any, *, gently: bool) -> None:
        """Write a piece of a part's snapshot; ``gently``: training continues and should be disturbed little."""

    def close(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the rest, wait until all is on disk, and return its entry for the manifest."""

    def abandon(self) -> None:
        """Close the files, finished or not."""


class Files(Protocol):
    """Where checkpoints are written and read; called from other threads."""

    def open(self, path: str, job: Mapping[str, Any], placement: Placement, index: int) -> Writer:
        """Open the files of a shard; the job is in wire form."""

    def read(self, shard: Shard, job: JobSpec, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill a new shard from a checkpoint; ``source`` is `Assign.restore`.

        Return the state saved with this shard (`_Save.state`); nothing if shards were divided differently.
        """


def restore(files: Files | None, shard: Shard, job: JobSpec, source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Restore a new shard from a checkpoint; return the ledgers of the workers that pushed to it."""
    if files is None:
        raise JobError("this server was started without a place for checkpoints, and cannot restore one")
    state = files.read(shard, job, source)
    shard.begin_at(source["version"])
    found: Mapping[str, Any] = {} if source.get("anew") else state.get("ledgers", {})
    return found


@dataclass(frozen=True, slots=True)
class Saving:
    """Tag of background work for a save; ``index`` is the number of the written piece, if it was one."""

    epoch: int
    number: int
    index: int = -1


class _Save:
    """A save in progress."""

    def __init__(self, message: Save, tenant: Tenant, snapshots: Sequence[PartSnapshot], version: int) -> None:
        self.message = message
        self.tenant = tenant
        self.snapshots = snapshots
        self.version = version
        self.state: dict[str, Any] = {
            "ledgers": tenant.ledgers.to_plain(),
            "tables": {},
        }  # of this moment, as the values
        for snapshot in snapshots:
            self.state |= snapshot.state
        self.writer: Writer | None = None
        self.in_hand: set[int] = set()
        self.busy = False  # a thread uses the writer
        self.ready: list[SnapshotSlice | RowPiece] = []  # the next to be written
        self.nbytes = 0
        self.num_pushes = tenant.counts["pushes"]  # when the last slice was handed out
        self.reported_at = 0.0

    @property
    def key(self) -> tuple[int, int]:
        """Its identity."""
        return self.message.epoch, self.message.number

    @property
    def failed(self) -> MemoryError | None:
        """Why its state is not kept any more."""
        return next((snapshot.failed for snapshot in self.snapshots if snapshot.failed is not None), None)

    def next(self) -> SnapshotSlice | RowPiece | None:
        """Return the next piece to write; raises as `Snapshot.next` does."""
        return next((piece for snapshot in self.snapshots if (piece := snapshot.next()) is not None), None)

    def done(self, number: int) -> None:
        """A piece is written."""
        self.in_hand.discard(number)
        for snapshot in self.snapshots:
            snapshot.done(number)


class Saves:
    """The saves of a server: one per shard, all of one checkpoint, because the coordinator makes one at a time."""

    def __init__(self, files: Files | None) -> None:  # where they are written; None: nowhere
        self._files = files
        self._under_way: dict[int, _Save] = {}  # by epoch
        self._said: dict[int, Saved] = {}  # the result of each shard's last one, in case the coordinator asks again
        self._awaited: dict[int, Save] = {}  # by epoch: those whose version is still to be committed
        self._leaving: dict[tuple[int, int], _Save] = {}  # given up while a thread had their files
        self._marks = Marks()

    def ask(self, message: Save, tenant: Tenant | None, now: float) -> list[Action]:
        """The coordinator requests a save of a shard; a repeated request does nothing more."""
        under_way = self._under_way.get(message.epoch)
        if under_way is not None and under_way.message.number == message.number:
            return [self._report(under_way, SaveStage.KEPT, now)]
        said = self._said.get(message.epoch)
        if said is not None and said.number == message.number:
            return [Send(COORDINATOR, said)]
        try:
            if tenant is None:
                raise JobError("this server has no shard of that job")
            shard = tenant.ready()
            if self._files is None:
                raise JobError("this server was started without a place for checkpoints")
            if message.exact and message.version > shard.version:
                self._awaited[message.epoch] = message
                return []
            versions = {member.version for part in shard.parts for member in part.members}
            if message.exact and versions - {message.version}:  # perhaps a part
                raise ProtocolError(f"version {message.version} is over: this shard continues with {shard.version + 1}")
            earlier = [save for save in self._under_way.values() if save.message.number != message.number]
            actions = [action for save in earlier for action in self._give_up(save, "another checkpoint has begun")]
            snapshots = self._keep(shard, message)
        except (MemoryError, PSError) as error:
            why = (str(error) or type(error).__name__)[:MAX_WHY_CHARS]
            return [self._ended(message, SaveStage.FAILED, {"why": why})]
        save = self._under_way[message.epoch] = _Save(message, tenant, snapshots, shard.version)
        opening = partial(self._files.open, message.path, tenant.assign.job, shard.placement, shard.index)
        save.busy = True
        return [*actions, self._report(save, SaveStage.KEPT, now), Run(Saving(message.epoch, message.number), opening)]

    def _keep(self, shard: Shard, message: Save) -> list[PartSnapshot]:
        """Keep a shard in its present state; of tables the changes since a save. The next may build upon either."""
        snapshots: list[PartSnapshot] = [Snapshot(shard.slices, shard.memory)]
        if tables := rows_in(shard).tables:
            base = self._marks.base(message.epoch, message.base)
            try:
                since = () if base is None else base.since(tables)
                snapshots.append(RowSnapshots(tables, since, len(shard.slices)))
                self._marks.note(message.epoch, message.number, message.base, RowMarks(tables))
            except MemoryError:
                for snapshot in snapshots:
                    snapshot.release()
                raise
        return snapshots

    def committed(self, tenant: Tenant, now: float) -> list[Action]:
        """A shard has another version, perhaps an awaited one."""
        message = self._awaited.pop(tenant.assign.epoch, None)
        return [] if message is None else self.ask(message, tenant, now)

    def returned(self, tag: Saving, value: Any, now: float) -> list[Action]:
        """Background work for a save is done, or has failed."""
        key = tag.epoch, tag.number
        if (leaving := self._leaving.pop(key, None)) is not None:
            leaving.writer = leaving.writer or (None if isinstance(value, Exception) else value)
            return _closed(leaving)
        save = self._under_way.get(tag.epoch)
        if save is None or save.key != key:
            return []
        save.busy = False
        if isinstance(value, Exception):
            return self._give_up(save, f"{value}" if isinstance(value, PSError) else repr(value))
        if save.writer is None:
            save.writer = value
        elif tag.index >= 0:
            save.done(tag.index)
        else:
            del self._under_way[tag.epoch]
            facts = {**value, "nbytes": save.nbytes, "version": save.version}
            return [self._ended(save.message, SaveStage.WRITTEN, facts)]
        return self._go_on(save, now)

    def _go_on(self, save: _Save, now: float) -> list[Action]:
        """Hand out slices as long as some wait, then sync all to disk."""
        writer = save.writer
        assert writer is not None
        try:
            while len(save.in_hand) < IN_HAND and (piece := save.next()) is not None:
                save.in_hand.add(piece.number)
                save.ready.append(piece)
                save.nbytes += piece.nbytes
        except MemoryError:
            pass
        if save.failed is not None:
            return self._give_up(save, f"this server lacks the memory to keep what is updated meanwhile: {save.failed}")
        actions: list[Action] = []
        if save.ready:
            piece = save.ready.pop(0)
            num_pushes = save.tenant.counts["pushes"]
            gently, save.num_pushes = num_pushes != save.num_pushes, num_pushes
            actions.append(Run(Saving(*save.key, piece.number), partial(writer.write, piece, gently=gently)))
        elif not save.in_hand:
            actions.append(Run(Saving(*save.key), partial(writer.close, save.state)))
        save.busy = bool(actions)
        if now >= save.reported_at + REPORT_S:
            actions.append(self._report(save, SaveStage.WRITING, now))
        return actions

    def end(self, epoch: int, number: int | None = None) -> list[Action]:
        """Discard a save's state, or any of an epoch: the job has ended, or the checkpoint has failed."""
        self._awaited.pop(epoch, None)
        if number is None:
            self._said.pop(epoch, None)
            self._marks.drop(epoch)
        save = self._under_way.get(epoch)
        if save is None or number not in (None, save.message.number):
            return []
        return self._let_go(save)

    def discarded(self, tenant: Tenant, now: float) -> list[Action]:
        """A shard has left this server."""
        return self.end(tenant.assign.epoch)

    def _give_up(self, save: _Save, why: str) -> list[Action]:
        return [*self._let_go(save), self._ended(save.message, SaveStage.FAILED, {"why": why[:MAX_WHY_CHARS]})]

    def _ended(self, message: Save, stage: SaveStage, facts: Mapping[str, Any]) -> Action:
        said = self._said[message.epoch] = Saved(message.epoch, message.number, stage, facts)
        return Send(COORDINATOR, said)

    def _let_go(self, save: _Save) -> list[Action]:
        for snapshot in save.snapshots:
            snapshot.release()
        del self._under_way[save.message.epoch]
        if save.busy:  # a thread has the files: they are closed after it
            self._leaving[save.key] = save
            return []
        return _closed(save)

    def _report(self, save: _Save, stage: SaveStage, now: float) -> Action:
        save.reported_at = now
        return Send(COORDINATOR, Saved(save.message.epoch, save.message.number, stage, {"nbytes": save.nbytes}))

    def counters(self, tenant: Tenant, now: float) -> Mapping[str, int]:
        """Return the status of a shard that is being saved."""
        save = self._under_way.get(tenant.assign.epoch)
        if save is None:
            return {}
        kept = sum([snapshot.nbytes for snapshot in save.snapshots])
        return {"saved_nbytes": save.nbytes, "kept_for_checkpoint_nbytes": kept}

    def validate(self) -> None:
        """Assert that the pieces handed out are kept."""
        self._marks.validate()
        for save in self._under_way.values():
            for snapshot in save.snapshots:
                snapshot.validate()
            assert len(save.in_hand) <= IN_HAND
            assert {piece.number for piece in save.ready} <= save.in_hand
            assert save.busy or save.failed is not None


def _closed(save: _Save) -> list[Action]:
    """Close the files of an abandoned save."""
    return [] if save.writer is None else [Run(Saving(0, 0), save.writer.abandon)]
