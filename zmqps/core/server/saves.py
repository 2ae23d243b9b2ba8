"""What a server does for a checkpoint: keeps its shard as it is, and has it written slice by slice meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import COORDINATOR, Action, Run, Send
from zmqps.core.protocol.messages import Save, Saved
from zmqps.core.protocol.messages.saving import SaveStage
from zmqps.core.server.dense.snapshot import Snapshot, SnapshotSlice
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.row_changes import Marks, RowMarks
from zmqps.core.server.tables.row_snapshot import RowPiece, RowSnapshots
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tenant import Tenant
from zmqps.errors import JobError, ProtocolError, PSError

#: Slices handed out at a time: one that is written, and one that is copied meanwhile.
IN_HAND = 2
#: So often the coordinator hears how far a save is, at most.
REPORT_S = 1.0
MAX_WHY_CHARS = 500
#: A part as it was at one moment, kept until it is written.
PartSnapshot: TypeAlias = Snapshot | RowSnapshots


class Writer(Protocol):
    """Writes a shard's part of a checkpoint; called from other threads, one at a time."""

    def write(self, piece: Any, *, gently: bool) -> None:
        """Write a piece of a part's snapshot; ``gently``: training goes on, and is to feel little of it."""

    def close(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write what is left, wait until all is on the disk, and return what the manifest says of it."""

    def abandon(self) -> None:
        """Give the files back, finished or not."""


class Files(Protocol):
    """Where checkpoints are written and read; called from other threads."""

    def open(self, path: str, job: Mapping[str, Any], placement: Placement, index: int) -> Writer:
        """Open the files of a shard; the job as it travels."""

    def read(self, shard: Shard, job: JobSpec, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill a shard that was just built with what a checkpoint has for it; ``source`` is `Assign.restore`.

        Return what was kept with this shard (`_Save.state`); nothing where shards were cut in another way.
        """


def restore(files: Files | None, shard: Shard, job: JobSpec, source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let a shard that was just built begin with what a checkpoint has for it; return who has pushed to that."""
    if files is None:
        raise JobError("this server was started without a place for checkpoints, and cannot restore one")
    state = files.read(shard, job, source)
    shard.begin_at(source["version"])
    found: Mapping[str, Any] = {} if source.get("anew") else state.get("ledgers", {})
    return found


@dataclass(frozen=True, slots=True)
class Saving:
    """Tag of what is done aside for a save; ``index`` is the number of the piece that was written, if it was one."""

    epoch: int
    number: int
    index: int = -1


class _Save:
    """A save under way."""

    def __init__(self, message: Save, tenant: Tenant, snapshots: Sequence[PartSnapshot], version: int) -> None:
        self.message = message
        self.tenant = tenant
        self.snapshots = snapshots
        self.version = version
        self.state: dict[str, Any] = {
            "ledgers": tenant.ledgers.to_plain(),
            "tables": {},
        }  # as of this moment, as the values
        for snapshot in snapshots:
            self.state |= snapshot.state
        self.writer: Writer | None = None
        self.in_hand: set[int] = set()
        self.busy = False  # a thread has the writer
        self.ready: list[SnapshotSlice | RowPiece] = []  # the next to be written
        self.nbytes = 0
        self.num_pushes = tenant.counts["pushes"]  # when the last slice was handed out
        self.reported_at = 0.0

    @property
    def key(self) -> tuple[int, int]:
        """Which it is."""
        return self.message.epoch, self.message.number

    @property
    def failed(self) -> MemoryError | None:
        """Why what was to be saved is not kept any more."""
        return next((snapshot.failed for snapshot in self.snapshots if snapshot.failed is not None), None)

    def next(self) -> SnapshotSlice | RowPiece | None:
        """Return what is to be written next; raises as `Snapshot.next` does."""
        return next((piece for snapshot in self.snapshots if (piece := snapshot.next()) is not None), None)

    def done(self, number: int) -> None:
        """A piece is written."""
        self.in_hand.discard(number)
        for snapshot in self.snapshots:
            snapshot.done(number)


class Saves:
    """The saves of a server: one a shard, all of one checkpoint, for the coordinator has one made at a time."""

    def __init__(self, files: Files | None) -> None:  # where they are written; None: nowhere
        self._files = files
        self._under_way: dict[int, _Save] = {}  # by epoch
        self._said: dict[int, Saved] = {}  # how the last one of each has ended, in case that the coordinator asks again
        self._awaited: dict[int, Save] = {}  # by epoch: those whose version is yet to be committed
        self._leaving: dict[tuple[int, int], _Save] = {}  # given up while a thread had their files
        self._marks = Marks()

    def ask(self, message: Save, tenant: Tenant | None, now: float) -> list[Action]:
        """The coordinator wants a shard to be kept and written; asked again, nothing more is done."""
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
            if message.exact and versions - {message.version}:  # a part, perhaps
                raise ProtocolError(f"version {message.version} is over: this shard goes on to {shard.version + 1}")
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
        """Keep a shard as it is; of tables what has changed since a save. The next one may build upon this, or that."""
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
        """A shard has another version: one that was awaited perhaps."""
        message = self._awaited.pop(tenant.assign.epoch, None)
        return [] if message is None else self.ask(message, tenant, now)

    def returned(self, tag: Saving, value: Any, now: float) -> list[Action]:
        """Something that was done aside for a save is done, or has failed."""
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
        """Hand out slices as long as some wait, then have all brought to the disk."""
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
        """Keep nothing more for a save, or for any of an epoch: the job has ended, or the checkpoint has failed."""
        self._awaited.pop(epoch, None)
        if number is None:
            self._said.pop(epoch, None)
            self._marks.drop(epoch)
        save = self._under_way.get(epoch)
        if save is None or number not in (None, save.message.number):
            return []
        return self._let_go(save)

    def discarded(self, tenant: Tenant, now: float) -> list[Action]:
        """A shard is not here any more."""
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
        if save.busy:  # a thread has the files: they are closed once it is done with them
            self._leaving[save.key] = save
            return []
        return _closed(save)

    def _report(self, save: _Save, stage: SaveStage, now: float) -> Action:
        save.reported_at = now
        return Send(COORDINATOR, Saved(save.message.epoch, save.message.number, stage, {"nbytes": save.nbytes}))

    def counters(self, tenant: Tenant, now: float) -> Mapping[str, int]:
        """Return what the status shows of a shard that is being saved."""
        save = self._under_way.get(tenant.assign.epoch)
        if save is None:
            return {}
        kept = sum([snapshot.nbytes for snapshot in save.snapshots])
        return {"saved_nbytes": save.nbytes, "kept_for_checkpoint_nbytes": kept}

    def validate(self) -> None:
        """Assert that what is handed out is kept."""
        self._marks.validate()
        for save in self._under_way.values():
            for snapshot in save.snapshots:
                snapshot.validate()
            assert len(save.in_hand) <= IN_HAND
            assert {piece.number for piece in save.ready} <= save.in_hand
            assert save.busy or save.failed is not None


def _closed(save: _Save) -> list[Action]:
    """Give the files of a save back that was given up."""
    return [] if save.writer is None else [Run(Saving(0, 0), save.writer.abandon)]
