"""Copies of sparse tables over real sockets: rows at a backup are those of its leader, however they came about."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster
from tests.modes import MODES
from zmqps import initial, optim
from zmqps.core.server.tables.rows import rows_in

TABLES = {
    "adam": zmqps.table(5, optimizer=optim.adam(0.1), initial=initial.normal(0.1)),
    "evicts": zmqps.table(3, optimizer=optim.sgd(0.1, momentum=0.9), capacity_nbytes=6000, when_full="evict"),
    "expires": zmqps.table(2, optimizer=optim.rowwise_adagrad(0.1), expire_steps=3),
    "admits": zmqps.table(2, optimizer=optim.adagrad(0.1), admit=2),
}


def copies(cluster: InProcessCluster) -> list[tuple[bool, dict[str, Any]]]:
    """Return of each copy whether it follows, and its tables, as they are at one moment."""
    found = Future[list[tuple[bool, dict[str, Any]]]]()

    def table_of(table: Any) -> Any:
        rows = np.flatnonzero(table.store.live[: table.store.end])
        kept = table.kept(rows[np.argsort(table.store.ids[rows])])
        return table.version, table.steps, [array.tolist() for array in kept.arrays]

    def look() -> None:
        machines = [driver.machine for driver in cluster.drivers[1:]]
        tenants = [tenant for machine in machines for tenant in machine.tenants.values()]  # type: ignore[attr-defined]
        found.set_result(
            [
                (
                    t.follows,
                    {(t.built().index, of.spec.name): table_of(of) for of in rows_in(t.built()).tables},
                )
                for t in tenants
            ]
        )

    cluster._loop.call_soon_threadsafe(look)
    return found.result(PATIENCE)


def check(cluster: InProcessCluster, *, copies_each: int = 2) -> None:
    by_role: dict[bool, list[Any]] = {False: [], True: []}
    for follows, tables in copies(cluster):
        by_role[follows] += sorted(tables.items())
    leaders = dict(by_role[False])
    assert any(rows[0] for _, _, rows in leaders.values())
    assert len(by_role[True]) == (copies_each - 1) * len(leaders)
    for key, table in by_role[True]:
        assert table == leaders[key], key


@pytest.mark.parametrize("params", [{}, {"w": np.zeros(50, np.float32)}], ids=["alone", "beside parameters"])
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_what_was_pushed_to_tables_is_on_both_servers(mode: str, params: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    with (
        InProcessCluster(servers=2, workers=1, replicas=1) as cluster,
        zmqps.connect(cluster.address, timeout=PATIENCE) as worker,
    ):
        worker.init(params, tables=TABLES, **MODES[mode], optimizer=optim.sgd(1.0) if params else None)
        for step in range(12):
            for name, options in TABLES.items():
                ids = rng.integers(0, 400, 60) * 1_000_003
                rows = rng.standard_normal((60, options.options["dim"])).astype(np.float32)
                if step == 5:
                    worker.table(name).load(ids, rows)
                else:
                    worker.table(name).push_pull(ids, rows, ids + 1_000_003, step=False)
            if mode != "async":
                worker.advance()
        worker.table("adam").pull([1])  # after a step that is over, which backups have
        check(cluster)
        assert worker.table("evicts").statistics().evicted
        assert worker.table("expires").statistics().expired
