"""A server writes its shard for a checkpoint: once, as it was when it was asked, and gives up what it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.core.machines import assign, job, make_shard, placement, sent
from tests.tables import for_each
from zmqps.core.protocol.events import Action, Run
from zmqps.core.protocol.messages import Save, Saved
from zmqps.core.protocol.messages.saving import SaveStage
from zmqps.core.server.dense.snapshot import SnapshotSlice
from zmqps.core.server.saves import IN_HAND, Saves, Saving
from zmqps.core.server.shard import Shard
from zmqps.core.server.tenant import Tenant

WORKER = b"w" * 16


class Files:
    """A disk that may fail, and remembers what was asked of it."""

    def __init__(self) -> None:
        self.fails = ""
        self.said: list[str] = []
        self.pieces: dict[int, Any] = {}

    def open(self, path: str, job: Mapping[str, Any], where: Any, index: int) -> Files:
        return self._do("open", self)

    def write(self, piece: SnapshotSlice, *, gently: bool = False) -> None:
        self._do("gently" if gently else "write", None)
        self.pieces[piece.number] = piece.value.copy()

    def close(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._do("close", {"files": [], "ledgers": sorted(state["ledgers"])})

    def abandon(self) -> None:
        self.said.append("abandon")

    def read(self, *_: Any) -> None:
        raise NotImplementedError

    def _do(self, what: str, value: Any) -> Any:
        self.said.append(what)
        if what == self.fails:
            raise OSError(28, "No space left on device")
        return value


class Server:
    """The saves of a server with a job, and the clock."""

    def __init__(self, **options: Any) -> None:
        self.files = Files()
        self.saves = Saves(self.files)
        self.now = 0.0
        self.tenants = [self.tenant(epoch, **options) for epoch in (1, 2)]
        self.work: list[Run] = []

    def tenant(self, epoch: int, **options: Any) -> Tenant:
        spec = job("a", "b", "c", **options)
        where = placement(spec)
        tenant = Tenant(assign(spec, where, epoch=epoch))
        tenant.shard = make_shard(spec, where, 0)
        tenant.shard.dense.load([(i, 0, ()) for i in range(3)], [np.zeros(8, np.float32)] * 3)
        return tenant

    def ask(self, number: int = 1, *, epoch: int = 1, exact: int = 0, version: int = 0) -> list[Saved]:
        message = Save(epoch, number, exact, version, "/c", 0)
        return self.took(self.saves.ask(message, self.tenants[epoch - 1], self.now))

    def took(self, actions: list[Action]) -> list[Saved]:
        self.work += [action for action in actions if isinstance(action, Run)]
        self.saves.validate()
        return sent(actions, Saved)

    def do(self) -> list[Saved]:
        """Let a thread do one thing."""
        run = self.work.pop(0)
        try:
            value = run.work()
        except OSError as error:
            value = error
        return self.took(self.saves.returned(run.tag, value, self.now))

    def do_all(self) -> list[Saved]:
        said = []
        while self.work:
            said += self.do()
        return said

    def shard(self, epoch: int = 1) -> Shard:
        return self.tenants[epoch - 1].built()

    def push(self, value: float, epoch: int = 1) -> None:
        self.shard(epoch).dense.push([(i, 0, ()) for i in range(3)], [np.full(8, value, np.float32)] * 3, "w")

    def commit(self) -> list[Saved]:
        shard = self.shard()
        step = shard.version
        parts, payload = [(i, 0, ()) for i in range(3)], [np.ones(8, np.float32)] * 3
        shard.dense.collect(parts, payload, (WORKER, step + 1), step, 1, "w")
        shard.commit(step, ((WORKER, (step + 1,)),))
        return self.took(self.saves.committed(self.tenants[0], self.now))

    @classmethod
    def asked(cls, fails: str = "") -> Server:
        """Return one that has begun to write, onto a disk that fails there."""
        server = cls()
        server.files.fails = fails
        server.ask()
        return server

    @property
    def untouched(self) -> bool:
        """Whether nothing is kept of any shard."""
        shards = [tenant.shard for tenant in self.tenants if tenant.shard is not None]
        states = [state for shard in shards for state in shard.slices]
        return all(s.snapshot is None and all(r.done for r in s.readers) for s in states)


def stages(said: list[Saved]) -> list[int]:
    return [message.stage for message in said]


def test_a_shard_is_kept_at_once_written_slice_by_slice_and_closed_last() -> None:
    server = Server()
    assert stages(server.ask()) == [SaveStage.KEPT]
    server.push(1.0)
    said = server.do_all()
    assert stages(said) == [SaveStage.WRITTEN]
    assert server.files.said == ["open", "write", "write", "write", "close"]
    assert all((value == 0.0).all() for value in server.files.pieces.values())
    assert said[0].facts["nbytes"] == 3 * 32
    assert server.untouched
    assert server.saves.counters(server.tenants[0], 0.0) == {}


def test_a_slice_is_written_gently_where_somebody_has_pushed_since_the_one_before() -> None:
    server = Server.asked()
    for pushes in (0, 1, 0):
        server.tenants[0].counts["pushes"] += pushes
        server.do()
    server.do_all()
    assert server.files.said == ["open", "write", "gently", "write", "close"]


def test_the_ledgers_are_those_of_the_moment_of_the_snapshot() -> None:
    server = Server()
    server.tenants[0].ledgers[b"a" * 16]
    server.ask()
    server.tenants[0].ledgers[b"b" * 16]
    assert server.do_all()[0].facts["ledgers"] == [(b"a" * 16).hex()]


def test_asked_again_while_it_writes_it_says_how_far_it_is() -> None:
    server = Server.asked()
    server.do()
    (said,) = server.ask()
    assert (said.stage, said.facts["nbytes"]) == (SaveStage.KEPT, IN_HAND * 32)
    assert len(server.work) == 1


@for_each("fails", ["", "write"])
def test_asked_again_after_its_end_it_says_it_again_and_writes_nothing(fails: str) -> None:
    server = Server.asked(fails)
    (said,) = server.do_all()
    done = list(server.files.said)
    server.push(2.0)
    assert server.ask() == [said]
    assert not server.work
    assert server.files.said == done
    assert stages(server.ask(2)) == [SaveStage.KEPT]


def test_it_reports_once_a_second_at_most() -> None:
    server = Server.asked()
    assert stages(server.do()) == []
    server.now = 1.0
    assert stages(server.do()) == [SaveStage.WRITING]
    assert stages(server.do()) == []
    server.now = 2.5
    assert stages(server.do()) == [SaveStage.WRITING]


@for_each("fails", ["open", "write", "close"])
def test_a_disk_that_fails_fails_the_save_and_nothing_else(fails: str) -> None:
    server = Server.asked(fails)
    (said,) = server.do_all()
    assert said.stage == SaveStage.FAILED
    assert "No space left" in said.facts["why"]
    assert (fails == "open") == ("abandon" not in server.files.said)
    assert server.untouched
    server.push(1.0)
    server.files.fails = ""
    server.ask(2)
    assert stages(server.do_all()) == [SaveStage.WRITTEN]
    assert all((value == -1.0).all() for value in server.files.pieces.values())


@for_each("number", [1, None], ids=["it", "with its job"])
@for_each("after", range(5))
def test_what_is_given_up_keeps_nothing_and_closes_its_files_once_the_thread_is_done(
    after: int, number: int | None
) -> None:
    server = Server.asked()
    for _ in range(min(after, 4)):
        server.do()
    assert server.took(server.saves.end(1, *([] if number is None else [number]))) == []
    assert server.untouched
    assert server.do_all() == []
    assert server.files.said.count("abandon") == 1
    assert server.do_all() == []


def test_an_end_of_another_checkpoint_or_job_is_none() -> None:
    server = Server()
    server.ask(5)
    server.took(server.saves.end(1, 4))
    server.took(server.saves.end(2))
    assert stages(server.do_all()) == [SaveStage.WRITTEN]


def test_another_checkpoint_takes_the_place_of_one_that_is_under_way() -> None:
    server = Server()
    server.ask(1)
    said = server.ask(2, epoch=2)
    assert [(m.number, m.stage) for m in said] == [(1, SaveStage.FAILED), (2, SaveStage.KEPT)]
    assert [(m.number, m.stage) for m in server.do_all()] == [(2, SaveStage.WRITTEN)]


def test_a_version_that_is_to_come_is_kept_when_it_has_come() -> None:
    server = Server(mode="sync")
    assert server.ask(exact=1, version=2) == []
    assert server.ask(exact=1, version=2) == []
    assert server.commit() == []
    assert stages(server.commit()) == [SaveStage.KEPT]
    server.commit()
    (said,) = server.do_all()
    assert said.facts["version"] == 2
    assert all((value == -2.0).all() for value in server.files.pieces.values())


def test_a_version_that_is_awaited_and_given_up_is_not_kept() -> None:
    server = Server(mode="sync")
    server.ask(exact=1, version=1)
    server.took(server.saves.end(1, 1))
    assert server.commit() == []
    assert not server.work


def test_a_version_that_is_over_or_half_over_cannot_be_kept() -> None:
    server = Server(mode="sync")
    server.commit()
    (said,) = server.ask(exact=1, version=0)
    assert said.stage == SaveStage.FAILED
    assert "version 0 is over" in said.facts["why"]
    server.shard().slices[1].version = 2  # a commit that failed half way, and is to be tried again
    (said,) = server.ask(2, exact=1, version=1)
    assert "version 1 is over" in said.facts["why"]
    assert server.untouched


def test_what_cannot_be_saved_is_said() -> None:
    server = Server()
    server.tenants[0].shard = None
    assert "no shard" in server.ask()[0].facts["why"]
    nowhere = Saves(None)
    (said,) = sent(nowhere.ask(Save(2, 1, 0, 0, "/c", 0), server.tenants[1], 0.0), Saved)
    assert "without a place" in said.facts["why"]
    (said,) = sent(nowhere.ask(Save(9, 2, 0, 0, "/c", 0), None, 0.0), Saved)
    assert (said.stage, "no shard of that job" in said.facts["why"]) == (SaveStage.FAILED, True)


def test_without_memory_for_what_is_updated_it_gives_up_and_the_update_is_done() -> None:
    server = Server.asked()
    server.shard().slices[0].snapshot.failed = MemoryError("no more")  # type: ignore[union-attr]
    (said,) = server.do_all()
    assert said.stage == SaveStage.FAILED
    assert "lacks the memory" in said.facts["why"]


def test_the_status_says_what_is_kept_for_it() -> None:
    server = Server.asked()
    server.push(1.0)
    counters = server.saves.counters(server.tenants[0], 0.0)
    assert counters["kept_for_checkpoint_nbytes"] == 3 * 32
    assert server.saves.counters(server.tenants[1], 0.0) == {}


def test_what_returns_of_nothing_under_way_changes_nothing() -> None:
    server = Server()
    assert server.saves.returned(Saving(3, 4), None, 0.0) == []
    server.ask()
    assert server.saves.returned(Saving(3, 4, 0), None, 0.0) == []
    assert stages(server.do_all()) == [SaveStage.WRITTEN]
