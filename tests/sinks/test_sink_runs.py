"""Open runs: one for each node, and not too many."""

from __future__ import annotations

import pytest

from zmqps.sinks.sink import Runs


def test_the_run_that_was_used_least_recently_is_closed_where_there_are_too_many() -> None:
    ended: list[str] = []
    runs = Runs(lambda job, node: f"{job}/{node}", ended.append, most=2)
    for node in ("a", "b", "a", "c", "a"):
        runs.of("j", node)
    assert ended == ["j/b"]
    assert sorted(runs.each()) == ["j/a", "j/c"]
    runs.close()
    assert sorted(ended) == ["j/a", "j/b", "j/c"]


def test_one_that_cannot_begin_is_tried_again_for_the_next_values() -> None:
    begun: list[str] = []

    def begin(job: str, node: str) -> str:
        begun.append(node)
        if len(begun) == 1:
            raise OSError("no route")
        return node

    runs = Runs(begin, lambda run: None)
    with pytest.raises(OSError, match="no route"):
        runs.of("j", "a")
    assert runs.each() == []
    assert [runs.of("j", "a") for _ in range(2)] == ["a", "a"]
    assert begun == ["a", "a"]


def test_one_that_cannot_be_closed_does_not_keep_others_open() -> None:
    ended: list[str] = []

    def end(run: str) -> None:
        ended.append(run)
        if run == "a":
            raise OSError("no room")

    runs = Runs(lambda job, node: node, end)
    for node in ("a", "b"):
        runs.of("j", node)
    with pytest.raises(OSError, match="no room"):
        runs.close()
    assert sorted(ended) == ["a", "b"]
