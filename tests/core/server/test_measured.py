"""What a server says in figures: of its process, and of each job however many copies it has of it."""

from __future__ import annotations

from tests.core.server.test_machine import Server, push
from zmqps.core.server.measured import measured


def test_a_server_counts_what_it_holds_by_job() -> None:
    server = Server.trained("w0")
    server.get(push(), "w0")
    process, job = measured(server.machine, {"cpu_seconds": 1.5}).counted
    assert (process.scope, process.labels) == ("server", {"role": "server", "rank": "0"})
    assert process.counters["cpu_seconds"] == 1.5  # type: ignore[index]
    assert (job.scope, job.labels["job"]) == ("job", "default")
    told = job.counters
    assert told["pushes"] == 1  # type: ignore[index]
    assert told["arena_nbytes"] - told["slots_nbytes"] == 64  # type: ignore[index, operator]


def test_of_two_copies_the_sum_is_told_and_the_longest_wait() -> None:
    server = Server.joined()
    for epoch in (1, 2):
        server.assign(epoch)
    first, second = server.machine.tenants.values()
    first.counts["pushes"], second.counts["pushes"] = 3, 4
    job = measured(server.machine, {}).counted[1]
    assert job.counters["pushes"] == 7  # type: ignore[index]
