"""The server's machine where versions matter: commits, parked pulls, codecs on the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.core.machines import assign, errors, hello, job, peer, sent, ticketed
from tests.core.server.test_machine import WELCOME, Server, pull, push, runs_of
from tests.tables import for_each
from zmqps.codecs import parse
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Disconnected
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.parked import nbytes_of
from zmqps.errors import (
    CodecError,
    EvictedError,
    JobEndedError,
    LimitError,
    ProtocolError,
    SliceRangeError,
    StaleEpochError,
    VersionError,
)

ONES = np.ones(8, np.float32)


def serve(*names: str, spec: JobSpec | None = None, **options: Any) -> Server:
    server = Server()
    server.spec = spec or job("a", "b", mode="sync", **options)
    server.train(*names)
    return server


def brought(name: str, *attempts: int) -> tuple[bytes, tuple[int, ...]]:
    return hello("worker", name).incarnation, attempts or (1,)


def commit(server: Server, *contributors: tuple[bytes, tuple[int, ...]], step: int = 0) -> list[Action]:
    return server.get(m.Commit(1, step, contributors))


def step(server: Server, number: int = 0, name: str = "w", value: Any = ONES) -> list[Action]:
    """Let one worker complete a step of both slices; return what the commit led to."""
    for slice_ in (0, 1):
        seq = 2 * number + slice_ + 1
        assert sent(server.get(push(seq, value, slice_=slice_, step=number, attempt=1), name), m.Ack)
    return commit(server, brought(name), step=number)


# --- commits ------------------------------------------------------------------------------------


def test_a_synchronous_push_is_acknowledged_and_applied_at_the_commit() -> None:
    server = serve("w", "v")
    (ack,) = sent(server.get(push(1, ONES, attempt=1), "w"), m.Ack)
    assert (list(ack.versions), list(ack.staleness)) == ([0], [0])
    server.get(push(1, 3 * ONES, attempt=1), "v")
    assert server.values() == [0.0] * 16
    assert sent(commit(server, brought("w"), brought("v")), m.Committed) == [m.Committed(1, 0)]
    assert server.values() == [-2.0] * 8 + [0.0] * 8
    assert server.machine.counters()["version"] == 1


def test_a_commit_sent_again_is_confirmed_again_and_changes_nothing() -> None:
    server = serve("w")
    step(server)
    before = server.values()
    for _ in range(3):
        assert sent(commit(server, brought("w")), m.Committed) == [m.Committed(1, 0)]
    assert server.values() == before
    assert server.machine.counters()["version"] == 1
    step(server, 1)
    assert sent(commit(server, brought("w"), step=0), m.Committed) == [m.Committed(1, 0)], "however late"
    assert server.machine.counters()["version"] == 2


def test_a_push_sent_again_counts_once_also_after_the_commit() -> None:
    server = serve("w")
    for _ in range(3):
        server.get(push(1, ONES, attempt=1), "w")
    commit(server, brought("w"))
    server.get(push(1, ONES, attempt=1), "w")
    commit(server, brought("w"), step=1)
    assert server.values()[:8] == [-1.0] * 8
    assert server.machine.counters()["duplicates"] == 3


def test_contributors_that_died_count_all_the_same() -> None:
    server = serve("w", "v")
    for name in ("w", "v"):
        server.get(push(1, ONES, attempt=1), name)
    server.get(m.Departed(hello("worker", "v").incarnation, 1))
    commit(server, brought("w"), brought("v"))
    assert server.values()[:8] == [-1.0] * 8


@for_each("message, code", [(m.Commit(1, 1, ()), ProtocolError.code), (m.Commit(2, 0, ()), StaleEpochError.code)])
def test_a_commit_that_cannot_be_is_refused(message: m.Commit, code: int) -> None:
    server = serve("w")
    assert errors(server.get(message)) == [code]
    assert server.machine.counters()["version"] == 0


def test_only_a_synchronous_job_has_commits() -> None:
    server = serve("w", spec=job("a", "b"))
    assert errors(commit(server, brought("w"))) == [ProtocolError.code]


def test_a_synchronous_push_has_no_values_to_answer_with() -> None:
    server = serve("w")
    assert errors(server.get(push(1, ONES, reply=1), "w")) == [ProtocolError.code]
    commit(server, brought("w", 0))
    assert server.values() == [0.0] * 16


def test_a_late_push_says_how_late() -> None:
    server = serve("w", "v")
    for number in range(3):
        step(server, number)
    (ack,) = sent(server.get(push(1, ONES, step=0, attempt=1), "v"), m.Ack)
    assert (list(ack.versions), list(ack.staleness)) == ([3], [3])
    assert server.machine.counters()["late"] == 1


# --- parked pulls -------------------------------------------------------------------------------


def test_a_pull_waits_for_its_version_and_is_answered_at_the_commit() -> None:
    server = serve("w", "v")
    assert server.get(pull(version=1), "v") == []
    assert server.machine.counters()["parked"] == 1
    (values,) = sent(step(server), m.Values, peer("v"))
    assert (values.request, list(values.versions)) == (7, [1])
    assert np.frombuffer(bytes(values.payload[0]), np.float32).tolist() == [-1.0] * 8
    assert server.machine.counters()["parked"] == 0


def test_a_parked_pull_that_is_sent_again_is_answered_once() -> None:
    server = serve("w", "v")
    for _ in range(3):
        assert server.get(pull(version=1), "v") == []
    assert len(sent(step(server), m.Values)) == 1
    assert len(sent(server.get(pull(version=1), "v"), m.Values)) == 1


def test_a_pull_of_one_who_has_gone_is_dropped_and_others_are_not() -> None:
    server = serve("w", "v")
    server.get(pull(7, version=1), "v")
    server.get(pull(8, version=1), "w")
    assert server.machine.handle(Disconnected(peer("v")), 0.0) == []
    assert server.machine.counters()["parked"] == 1
    assert [got.request for got in sent(step(server), m.Values)] == [8]
    assert sent(server.get(pull(9, version=1), "v"), m.Values), "it may come back and ask again"


def test_a_pull_that_is_withdrawn_is_not_answered() -> None:
    server = serve("w", "v")
    server.get(pull(7, version=1), "v")
    server.get(pull(7, version=1), "w")
    server.get(pull(8, version=1), "v")
    assert server.get(m.Withdraw(7), "v") == []
    assert server.get(m.Withdraw(9), "v") == [], "it was answered before"
    assert server.machine.counters()["parked"] == 2
    answers = step(server)
    assert [got.request for got in sent(answers, m.Values, peer("w"))] == [7]
    assert [got.request for got in sent(answers, m.Values, peer("v"))] == [8]


def test_a_pull_waits_as_many_steps_as_it_must() -> None:
    server = serve("w", "v")
    server.get(pull(7, version=2), "v")
    server.get(pull(8, version=1), "v")
    assert [got.request for got in sent(step(server, 0), m.Values)] == [8]
    assert [got.request for got in sent(step(server, 1), m.Values)] == [7]


def test_a_pull_of_exactly_one_version() -> None:
    server = serve("w", "v", retain=1)
    server.get(pull(version=1, exact=1), "v")
    assert [list(got.versions) for got in sent(step(server, 0), m.Values)] == [[1]]
    step(server, 1)
    (old,) = sent(server.get(pull(version=1, exact=1), "v"), m.Values)
    assert list(old.versions) == [1]
    assert np.frombuffer(bytes(old.payload[0]), np.float32).tolist() == [-1.0] * 8
    (refused,) = sent(server.get(pull(version=0, exact=1), "v"), m.Error)
    assert (refused.code, dict(refused.facts)) == (VersionError.code, {"version": 0, "oldest": 1, "newest": 2})


def test_a_pull_is_parked_in_the_asynchronous_mode_too() -> None:
    server = serve("w", "v", spec=job("a", "b"))
    server.get(pull(version=2), "v")
    assert sent(server.get(push(1), "w"), m.Values) == []
    (values,) = sent(server.get(push(2, slice_=0), "w"), m.Values, peer("v"))
    assert list(values.versions) == [2]


def test_an_exact_version_that_passes_by_slice_by_slice_is_refused_when_it_can_no_longer_be() -> None:
    server = serve("w", "v", spec=job("a", "b"))
    server.get(m.Pull(7, 1, 1, 1, "raw", ((0, 0, ()), (1, 0, ()))), "v")
    assert errors(server.get(push(1, slice_=0), "w")) == []
    actions = server.get(push(2, slice_=0), "w")
    assert errors(actions, peer("v")) == [VersionError.code]
    assert server.machine.counters()["parked"] == 0


@for_each(
    "message, code",
    [(pull(version=1, slice_=9), SliceRangeError.code), (pull(version=1, codec="zip"), CodecError.code)],
)
def test_a_pull_that_makes_no_sense_is_not_parked(message: m.Pull, code: int) -> None:
    server = serve("w")
    assert errors(server.get(message, "w")) == [code]
    assert server.machine.counters()["parked"] == 0


@for_each("is_lost", [False, True])
def test_the_parked_pulls_of_who_is_gone_are_forgotten(is_lost: bool) -> None:
    server = serve("w", "v")
    server.get(pull(version=1), "v")
    if is_lost:
        server.get(m.Departed(hello("worker", "v").incarnation, 1))
        assert errors(server.get(pull(version=1), "v")) == [EvictedError.code]
    else:
        server.get(m.Leave("finished"), "v")
    assert server.machine.counters()["parked"] == 0
    assert sent(step(server), m.Values) == []


def test_a_pull_parked_for_a_job_that_was_given_up_is_refused() -> None:
    server = serve("w")
    server.get(pull(version=1), "w")
    assert errors(server.get(m.Discard(1)), peer("w")) == [JobEndedError.code]
    assert server.machine.tenants == {}


@pytest.mark.parametrize(("limit", "value"), [("MAX_PARKED_NBYTES", 3 * nbytes_of(pull())), ("MAX_PARKED", 3)])
def test_a_worker_parks_so_much_and_no_more(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"zmqps.core.server.parked.{limit}", value)
    server = serve("w", "v")
    for request in (1, 2, 3, 3):
        assert server.get(pull(request, version=1), "w") == []
    assert errors(server.get(pull(9, version=1), "w")) == [LimitError.code]
    assert server.get(pull(9, version=1), "v") == [], "another one is not concerned"
    assert len(sent(step(server), m.Values)) == 4


def test_where_all_have_parked_too_much_who_has_most_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.server.machine.MAX_ALL_PARKED_NBYTES", 4 * nbytes_of(pull()))
    server = serve("w", "v")
    for request in (1, 2, 3, 4):
        assert server.get(pull(request, version=1), "w") == []
    assert errors(server.get(pull(5, version=1), "w"), peer("w")) == [LimitError.code]
    for request in (1, 2):
        (refused,) = sent(server.get(pull(request, version=1), "v"), m.Error, peer("w"))
        assert refused.code == LimitError.code
    assert errors(server.get(pull(3, version=1), "v"), peer("v")) == [LimitError.code]
    done = step(server)
    assert [len(sent(done, m.Values, peer(name))) for name in ("w", "v")] == [2, 2]


def test_whose_pull_makes_room_for_one_that_does_not_fit_all_the_same_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.server.machine.MAX_ALL_PARKED_NBYTES", 2 * nbytes_of(pull()))
    server = serve("w", "v")
    for request in (1, 2):
        server.get(pull(request, version=1), "w")
    larger = m.Pull(3, 1, 1, 0, "raw", ((0, 0, ()), (1, 0, ())))  # does not fit beside one, and is more than it
    refused = server.get(larger, "v")
    assert [error.request for error in sent(refused, m.Error, peer("w"))] == [2]
    assert [error.request for error in sent(refused, m.Error, peer("v"))] == [3]
    assert [values.request for values in sent(step(server), m.Values)] == [1]


def test_an_update_looks_only_at_the_pulls_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("w", "v", spec=job("a", "b"))
    for request in range(1000):
        server.get(pull(request + 1, version=1 << 40), "v")
    server.get(pull(2000, version=1), "v")
    looked = []
    available = DensePart.available
    monkeypatch.setattr(DensePart, "available", lambda *a, **k: looked.append(1) or available(*a, **k))
    (values,) = sent(server.get(push(1), "w"), m.Values, peer("v"))
    assert values.request == 2000
    assert len(looked) == 1


# --- codecs -------------------------------------------------------------------------------------

LARGE = np.linspace(-1, 1, 400, dtype=np.float32)


def large(**options: Any) -> Server:
    """Return a server of two slices of 400 values."""
    server = Server()
    server.spec = job("a", "b", size=400, **options)
    server.get(WELCOME)
    where = Placement.balance(KeySpace(server.spec.parameters), 1, 1600)
    server.build(*runs_of(server.get(assign(server.spec, where))))
    for name in ("w", "loader"):
        server.get(ticketed("worker", name, loads=name == "loader"), name)
    server.get(m.Load(1, 1, ((0, 0, ()), (1, 0, ())), (np.zeros(800, np.float32),)), "loader")
    return server


@for_each("spec", ["bf16", "int8:block=16", "topk:fraction=0.1", "onebit"])
def test_a_push_in_a_codec_is_what_the_blob_says(spec: str) -> None:
    server, codec = large(), parse(spec)
    blob = codec.encode(LARGE)
    assert sent(server.get(push(1, blob, codec=spec), "w"), m.Ack)
    expected, _ = codec.decode(blob, LARGE.size, LARGE.dtype)
    assert server.values()[:400] == (-expected).tolist()
    assert server.machine.counters()["pushed_nbytes"] == blob.nbytes


def test_a_push_in_a_codec_of_two_parts_is_two_blobs() -> None:
    server, codec = large(), parse("int8")
    blobs = [codec.encode(LARGE), codec.encode(2 * LARGE)]
    message = replace(push(1, codec="int8"), parts=((0, 0, ()), (1, 0, ())), payload=tuple(blobs))
    assert sent(server.get(message, "w"), m.Ack)
    np.testing.assert_allclose(server.values(), -np.concatenate([LARGE, 2 * LARGE]), atol=0.02)


@for_each(
    "changes, code",
    [
        ({"codec": "int8:block=17,block=17"}, ProtocolError.code),
        ({"codec": "int8", "payload": (b"junk",)}, ProtocolError.code),
        ({"codec": "int8", "payload": ()}, ProtocolError.code),
        ({"codec": "topk", "payload": (np.array([1, 9999, 0], np.uint32),)}, ProtocolError.code),
        ({"codec": "bf16", "payload": (np.full(400, 0x7FC0, np.uint16),)}, 45),  # NaN
        ({"codec": "bf16", "parts": ((9, 0, ()),)}, SliceRangeError.code),
        ({"reply": 1, "reply_codec": "zip"}, CodecError.code),
        ({"reply": 1, "reply_codec": "topk"}, ProtocolError.code),
    ],
)
def test_a_push_in_a_codec_that_is_refused_changes_nothing(changes: dict[str, Any], code: int) -> None:
    server = large()
    assert errors(server.get(replace(push(1, LARGE), **changes), "w")) == [code]
    assert server.values() == [0.0] * 800
    assert len(sent(server.get(push(1, LARGE), "w"), m.Ack)) == 1, "it is not in the ledger either"


@for_each("spec", ["bf16", "fp16", "int8:block=64"])
def test_values_come_in_the_codec_that_was_asked_for(spec: str) -> None:
    server, codec = large(), parse(spec)
    (answer,) = sent(server.get(push(1, LARGE, reply=1, reply_codec=spec), "w"), m.Values)
    (pulled,) = sent(server.get(pull(codec=spec), "w"), m.Values)
    for values in (answer, pulled):
        assert values.codec == codec.spec
        array, _ = codec.decode(np.concatenate(values.payload), LARGE.size, LARGE.dtype)
        np.testing.assert_allclose(array, -LARGE, atol=0.02)


def test_small_values_come_raw_and_what_leaves_something_out_is_refused_however_small() -> None:
    server = serve("w", spec=job("a", "b"))
    (values,) = sent(server.get(pull(codec="int8"), "w"), m.Values)
    assert (values.codec, len(values.payload)) == ("raw", 1)
    for codec in ("zip", "topk", "onebit"):
        refused = CodecError if codec == "zip" else ProtocolError
        assert errors(server.get(pull(codec=codec), "w")) == [refused.code]
