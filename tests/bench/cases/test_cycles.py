"""Where the time of a small push_pull goes: all of it is in some group."""

from __future__ import annotations

from bench.cases.cycles import PACKAGE, group_of, grouped, measure


def test_what_is_compiled_counts_as_its_caller_s_and_waiting_does_not() -> None:
    of_core, of_client = (f"{PACKAGE}core/worker/link.py", 1, "pump"), (f"{PACKAGE}client/thread.py", 1, "take")
    stats = {
        of_core: (1, 1, 2.0, 3.0, {}),
        of_client: (1, 1, 4.0, 5.0, {}),
        ("~", 0, "<built-in method builtins.len>"): (
            3,
            3,
            3.0,
            3.0,
            {of_core: (2, 2, 1.0, 1.0), of_client: (1, 1, 2.0, 2.0)},
        ),
        ("~", 0, "<method 'poll' of 'select.epoll' objects>"): (1, 1, 99.0, 99.0, {of_client: (1, 1, 99.0, 99.0)}),
    }
    assert grouped(stats) == {"core's machines": 3.0, "client": 6.0}
    assert group_of("/somewhere/asyncio/events.py") == "asyncio"
    assert group_of(f"{PACKAGE}core/protocol/wire.py") == "encode, decode"
    assert group_of("/somewhere/numpy/core.py") == "others"


def test_worker_and_server_spend_some_time_in_each_part() -> None:
    found = measure("sync", 20)
    assert found.keys() == {"worker", "server"}
    for groups in found.values():
        assert {"core's machines", "transport", "driver", "encode, decode", "asyncio"} <= groups.keys()
        assert all(took >= 0 for took in groups.values())
