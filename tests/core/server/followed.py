"""A sparse table on two shards that answer at once, for those who follow it; and a copy of it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np

from zmqps import initial, optim
from zmqps.client.requests import Requests
from zmqps.client.sparse.feed import Changes, Feed
from zmqps.client.sparse.rows import Brought
from zmqps.client.sparse.tables import table
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import ScanRows
from zmqps.core.server.tables.gone import GoneLog
from zmqps.core.server.tables.rows import Rows, make_rows
from zmqps.core.worker.operations import Attached, Exchange
from zmqps.core.worker.rows import RowCargo, RowSource, ScanTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.errors import PeerLostError
from zmqps.gpu.handover import Handover
from zmqps.optim.rows import kernel_of_table
from zmqps.rows.kept import rebased

DIM = 2
SHARDS = 2
#: Of what kind tables are: rows that stay, make way for others, expire by updates, by seconds, by both.
KINDS: dict[str, dict[str, Any]] = {
    "stay": {},
    "make way": {"capacity_nbytes": 1200, "when_full": "evict"},
    "expire by updates": {"expire_steps": 4},
    "expire by seconds": {"expire_seconds": 6},
    "all": {"capacity_nbytes": 1200, "when_full": "evict", "expire_steps": 9, "expire_seconds": 6},
}


class Servers:
    """A table on its shards, and the way there; answers are given at once."""

    def __init__(self, most_gone: int = 1 << 10, mode: str = "async", secret: int = 0, **options: Any) -> None:
        spec = table(DIM, optimizer=optim.sgd(1.0), initial=initial.constant(1.0), **options).named("items")
        self.job = JobSpec(parameters=(), optimizer=optim.sgd(1.0).to_wire(), tables=(spec,), mode=mode)
        self.placement = Placement.balance(KeySpace.of(self.job), SHARDS)
        self.requests = Requests(Attached(self.job, self.placement), Handover())
        self.now = 0.0
        self.asked = 0  # scans
        self.fails = 0  # so many of the next ones
        self.epoch = 0
        self.most_gone, self.secret = most_gone, secret
        self.shards: list[tuple[int, Rows]] = []
        for shard in range(SHARDS):
            self.shards.append(self.build(shard))

    def build(self, shard: int) -> tuple[int, Rows]:
        """Return a new copy of a shard, which is empty."""
        kernel = lambda spec: kernel_of_table(spec.optimizer, spec.name, spec.dim, "numpy")  # noqa: E731
        rows = make_rows(self.job, self.placement, shard, kernel, available_nbytes=1 << 16, secret=self.secret)
        rows.tables[0].gone = GoneLog(self.most_gone)
        self.epoch += 1
        return self.epoch, rows

    def go_back(self, shard: int) -> None:
        """Lose a shard; a new copy has some of its rows, as they were once, and has had fewer updates."""
        items = self.shards[shard][1].tables[0]
        kept = items.kept(np.flatnonzero(items.store.live[: items.store.end])[::2])
        self.shards[shard] = self.build(shard)
        again = self.shards[shard][1].tables[0]
        again.steps, again.version = items.steps // 2, items.version
        stamps = rebased(kept.stamps, again.steps, items.steps)
        again.restore(kept._replace(values=kept.values + 100, stamps=stamps))

    def feed(self, since: Any = (), most: int = 3) -> Feed:
        return Feed(lambda timeout: self.requests.table("items"), self.exchange, since=since, most=most)

    def exchange(self, exchange: Exchange, timeout: float | None) -> Future[Any]:
        assert isinstance(exchange.pull, PullTransfer)
        done = Future[Any]()
        if self.fails:
            self.fails -= 1
            done.set_exception(PeerLostError(role="server", name="server-0", silent_s=1.0, advice=""))
            return done
        [cargo], target = cargoes_of(exchange.pull), exchange.pull.target
        assert isinstance(target, ScanTarget)
        epoch, rows = self.shards[cargo.slice.shard]
        self.asked += 1
        rows.tick(self.now)
        message = ScanRows(1, epoch, cargo.slice.index, target.start, target.most, target.since)
        [pieces], versions, _ = rows.scan(message, self.now)
        target.land([cargo], pieces, versions)
        done.set_result(None)
        return done

    def push(self, ids: Array, by: float) -> None:
        """Push the same gradient for some ids."""
        self._write(self.pushing(ids, by))

    def pushing(self, ids: Array, by: float) -> PushTransfer:
        """Return the transfer of such a push."""
        push = self.requests.table("items").exchange(Brought(ids, np.full((ids.size, DIM), by)))[0].push
        assert push is not None
        return push

    def load(self, ids: Array, value: float) -> None:
        """Set rows."""
        self._write(self.requests.table("items").load(ids, np.full((ids.size, DIM), value), False))

    def _write(self, push: PushTransfer) -> None:
        assert isinstance(push.source, RowSource)
        for cargo in cargoes_of(push):
            rows = self.shards[cargo.slice.shard][1]
            rows.tick(self.now)
            [items] = rows.tables
            values = push.source.rows[cargo.first : cargo.first + cargo.pushed.size]
            if push.terms:
                items.put(cargo.pushed, values)
            else:
                items.update(cargo.pushed, values)
            items.version += 1

    def rows(self) -> dict[int, list[float]]:
        """Return what a copy is to be."""
        found = {}
        for _, rows in self.shards:
            rows.tick(self.now)
            [items] = rows.tables
            items.validate()
            places = np.arange(items.store.end)
            places = places[items.is_there(places)]
            found.update(zip(items.store.ids[places].tolist(), items.store.values[places].tolist(), strict=True))
        return found


def cargoes_of(transfer: PullTransfer | PushTransfer) -> list[RowCargo]:
    return [cargo for row in transfer.cargoes for cargo in row if isinstance(cargo, RowCargo)]


def apply(copy: dict[int, list[float]], found: Changes) -> None:
    """Let a copy have a part of a poll."""
    if found.reset:
        copy.clear()
    for number in found.gone.tolist():
        copy.pop(number, None)
    assert np.unique(found.ids).size == found.ids.size
    copy.update(zip(found.ids.tolist(), found.rows.tolist(), strict=True))


def followed(feed: Feed, copy: dict[int, list[float]]) -> list[Changes]:
    """Go through a poll, and let a copy have it; return its parts."""
    parts = list(feed.poll())
    for part in parts:
        apply(copy, part)
    return parts


def some(*numbers: int) -> Array:
    return np.array(numbers, np.int64)
