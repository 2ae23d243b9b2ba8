"""What hostile messages cost the coordinator: every kind that a client may send is tried, and a bound is kept."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bench.cases import hostile
from zmqps.core.protocol.messages import BY_KIND
from zmqps.core.protocol.messages.large import LIST_OF_MANY
from zmqps.core.protocol.security.roles import SERVER, TABLE


def kind(header: bytes) -> int:
    return header[3] if header[0] == LIST_OF_MANY else header[1]


@pytest.mark.repeats
def test_every_message_that_a_client_may_send_is_tried() -> None:
    clients = {row.message for row in TABLE if row.coordinator - {SERVER}}
    for_its_own = [make for name, (_, make) in hostile.CASES.items() if "any kind" not in name and "Init" not in name]
    tried = {BY_KIND[kind(frames[0])] for make in for_its_own for frames in make()}
    missing = {cls.__name__ for cls in clients - tried}
    assert missing <= {"Init", "Hello"}, "these have cases of their own"
    assert {BY_KIND[kind(frames[0])] for frames in hostile.nonsense()} == set(BY_KIND.values())


@pytest.mark.repeats
def test_a_case_tells_its_longest_message_and_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "MOST_S", 10.0)
    found = CliRunner().invoke(hostile.command, ["--only", "SetRates"], catch_exceptions=False)
    assert found.exit_code == 0
    assert "SetRates" in found.output
    assert "more than" not in found.output


@pytest.mark.repeats
def test_what_costs_more_than_the_bound_is_named_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "MOST_S", 0.0)
    found = CliRunner().invoke(hostile.command, ["--only", "SetRates"], catch_exceptions=False)
    assert found.exit_code == 1
    assert "more than 0" in found.output
