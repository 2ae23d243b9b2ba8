"""The server's machine: what it answers to whom, and that a push counts once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.core.machines import (
    assign,
    errors,
    exits_of,
    identity,
    job,
    logged,
    make_shard,
    peer,
    placement,
    sent,
    ticketed,
)
from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Received, Returned, Run, Stop, Undecodable
from zmqps.core.protocol.messages.large import Large, decode_but_assign
from zmqps.core.protocol.security.keys import alias
from zmqps.core.protocol.typed import pack
from zmqps.core.protocol.wire import encode
from zmqps.core.server.extensions import ServerMachine
from zmqps.errors import (
    CodecError,
    CoordinatorRestartedError,
    EvictedError,
    IdentityError,
    JobError,
    LimitError,
    NonFiniteGradientError,
    NotJoinedError,
    OptimizerError,
    PeerLostError,
    ProtocolError,
    ProtocolVersionError,
    SliceRangeError,
    StaleEpochError,
    from_wire,
)
from zmqps.optim import sgd
from zmqps.rows.initial import Initial

WELCOME = m.Welcome(1, b"i" * 16, "c", 0, 1.0, 10.0, 1, 1)
EIGHT = np.arange(8, dtype=np.float32)


class Server:
    """A server and the clock, with its invariants checked after every event."""

    def __init__(self, make: Any = make_shard) -> None:
        self.machine = ServerMachine(identity("server", "s"), "tcp://coordinator:1", make)
        self.machine.start(0.0)
        self.now = 0.0
        self.spec = job("a", "b")

    def handle(self, event: Any) -> list[Action]:
        actions = self.machine.handle(event, self.now)
        self.machine.validate()
        return actions

    def get(self, message: Any, name: str | None = None) -> list[Action]:
        return self.handle(Received(COORDINATOR if name is None else peer(name), message))

    def assign(self, epoch: int = 1, build: bool = True) -> list[Action]:
        where = placement(self.spec)
        actions = self.get(assign(self.spec, where, epoch=epoch))
        runs = runs_of(actions)
        return self.build(runs[0]) if build and runs else actions

    def build(self, run: Run) -> list[Action]:
        """Do what is done aside; its outcome comes back."""
        try:
            value: Any = run.work()
        except Exception as error:
            value = error
        return self.handle(Returned(run.tag, value))

    def train(self, *names: str) -> None:
        self.get(WELCOME)
        self.assign()
        for name in names:
            self.get(ticketed("observer" if name[0] == "o" else "worker", name), name)
        self.get(ticketed("worker", "loader", loads=True), "loader")
        self.get(m.Load(1, 1, ((0, 0, ()), (1, 0, ())), (np.zeros(16, np.float32),)), "loader")

    @classmethod
    def joined(cls) -> Server:
        server = cls()
        server.get(WELCOME)
        return server

    @classmethod
    def trained(cls, *names: str) -> Server:
        server = cls()
        server.train(*names)
        return server

    def values(self, epoch: int = 1) -> list[float]:
        shard = self.machine.tenants[epoch].built()
        return [float(v) for state in shard.slices for v in state.value]


def runs_of(actions: list[Action]) -> list[Run]:
    return [action for action in actions if isinstance(action, Run)]


def push(seq: int = 1, value: Any = EIGHT, epoch: int = 1, slice_: int = 0, reply: int = 0, **over: Any) -> m.Push:
    fields = {"request": seq + 100, "seq": seq, "epoch": epoch, "reply": reply, "checked": 0, "codec": "raw"}
    fields |= {"step": 0, "attempt": 0, "examples": 1, "reply_codec": "raw", "terms": ()}
    return m.Push(**{**fields, "parts": ((slice_, 0, ()),), "payload": (value,), **over})


def pull(
    request: int = 7, version: int = 0, exact: int = 0, slice_: int = 0, codec: str = "raw", epoch: int = 1
) -> m.Pull:
    return m.Pull(request, epoch, version, exact, codec, ((slice_, 0, ()),))


# --- the coordinator ----------------------------------------------------------------------------


def test_a_shard_is_built_aside_and_reported() -> None:
    server = Server()
    (run,) = runs_of(server.assign(build=False))
    assert server.assign(build=False) == [], "asked again while it is built: it answers when it is done"
    assert [(got.epoch, got.loaded) for got in sent(server.build(run), m.Ready)] == [(1, 0)]
    assert [(got.epoch, got.loaded) for got in sent(server.assign(), m.Ready)] == [(1, 0)], "a repeated Assign"


def test_a_shard_that_no_server_is_said_to_share_the_memory_with_is_built_all_the_same() -> None:
    server = Server()
    (run,) = runs_of(server.get(replace(assign(server.spec, placement(server.spec)), sharing=0)))
    assert [(got.epoch, got.loaded) for got in sent(server.build(run), m.Ready)] == [(1, 0)]


def test_the_counters_say_whether_the_shard_has_its_values() -> None:
    server = Server()
    server.assign()
    assert server.machine.counters()["loaded"] is False, "built, and still empty"
    server.train("w")
    assert server.machine.counters()["loaded"] is True
    assert server.machine.counters()["stage_nbytes"] == 0, "nothing waits for a step in asynchronous training"


def test_a_shard_that_is_built_for_a_job_given_up_is_dropped() -> None:
    server = Server()
    (run,) = runs_of(server.assign(build=False))
    assert sent(server.get(m.Discard(1)), m.Discarded) == [m.Discarded(1)]
    assert server.build(run) == []
    assert server.machine.tenants == {}


@for_each(
    "raised, code, says",
    [
        (OptimizerError("no such optimizer"), OptimizerError.code, "no such optimizer"),
        (MemoryError("8 GB"), JobError.code, "start more servers"),
        (RuntimeError("oops"), JobError.code, "RuntimeError('oops')"),
    ],
)
def test_a_shard_that_cannot_be_built_is_reported_with_its_epoch(raised: Exception, code: int, says: str) -> None:
    def make(*_: Any) -> Any:
        raise raised

    server = Server(make)
    for _ in range(2):  # asked again, for the first answer may have been lost
        (message,) = sent(server.assign(epoch=3), m.Error, COORDINATOR)
        assert (message.request, message.code) == (3, code)
        assert says in message.text


@for_each("change", [{"shard": 1}, {"job": {}}, {"placement": {}}])
def test_an_assignment_that_makes_no_sense_is_refused_with_its_epoch(change: dict[str, Any]) -> None:
    server = Server()
    message = replace(assign(server.spec, placement(server.spec), epoch=4), **change)
    (run,) = runs_of(server.get(message))
    (refused,) = sent(server.build(run), m.Error, COORDINATOR)
    assert (refused.request, refused.code) == (4, ProtocolError.code)
    assert server.machine.tenants == {}


#: What a turn of a server's loop may take, in processor time of its thread.
MOST_TURN_S = 0.02


def large(epoch: int = 1, tables: Sequence[TableSpec] = (), names: int = 1000, **options: Any) -> list[Any]:
    """Return an `Assign` with a large header as it travels."""
    parameters = job(*[f"{number:06d}" for number in range(names)], size=1).parameters if names else ()
    spec = replace(job("a"), parameters=parameters, tables=tuple(tables))
    where = Placement.balance(KeySpace.of(spec), 1, 4 << 20)
    return encode(replace(assign(spec, where, epoch=epoch), **options))


def test_no_turn_of_a_server_takes_long_for_a_job_of_many_parameters() -> None:
    server, frames, turns = Server(), large(names=50_000), list[float]()

    def turn(take: Callable[[], Any]) -> list[Action]:
        began = time.thread_time()
        actions: list[Action] = server.machine.handle(take(), server.now)
        turns.append(time.thread_time() - began)
        return actions

    for _ in range(2):
        (read,) = runs_of(turn(lambda: Received(COORDINATOR, decode_but_assign(frames))))
        message = read.work()
        built = runs_of(turn(lambda: Returned(read.tag, message)))  # noqa: B023  (called at once)
        for run in built:
            shard = run.work()
            (ready,) = sent(turn(lambda: Returned(run.tag, shard)), m.Ready)  # noqa: B023
            assert (ready.epoch, ready.loaded) == (1, 0)
    assert built == [], "it is known by now"
    assert len(server.machine.tenants[1].built().placement.keyspace.parameters) == 50_000
    assert max(turns) <= MOST_TURN_S


def test_what_comes_behind_a_large_assignment_waits_until_that_is_read() -> None:
    server = Server.joined()
    (first,) = runs_of(server.get(decode_but_assign(large(epoch=1))))
    server.now = 3.0
    others = [decode_but_assign(large(epoch=2)), m.Discard(2), m.Shutdown("the job is finished")]
    assert [server.get(message) for message in [m.Discard(1), *others]] == [[]] * 4
    assert server.machine.member.heard_at == 3.0, "each is a sign of life"
    actions = server.build(first)
    assert [got.epoch for got in sent(actions, m.Discarded)] == [1], (
        "what was assigned is discarded, not the other way round"
    )
    built, second = runs_of(actions)
    assert exits_of(actions) == []
    actions = server.build(second)
    assert [got.epoch for got in sent(actions, m.Discarded)] == [2]
    assert exits_of(actions) == [exits.OK]
    assert server.machine.tenants == {}
    assert sent(server.build(built), m.Ready) == [], "its job was given up meanwhile"
    assert len(sent(server.get(m.Discard(3)), m.Discarded)) == 1, "and nothing waits any more"


def test_a_large_assignment_that_cannot_be_read_is_refused_and_holds_nothing_up() -> None:
    server = Server()
    header = [m.Assign.kind, 1, "default", {"parameters": ["x" * 20_000]}]
    (run,) = runs_of(server.get(decode_but_assign([pack(header)])))
    assert server.get(m.Discard(7)) == []
    actions = server.build(run)
    assert errors(actions, COORDINATOR) == [ProtocolError.code]
    assert [got.epoch for got in sent(actions, m.Discarded)] == [7]


def test_a_large_assignment_is_taken_from_nobody_but_the_coordinator() -> None:
    server = Server.trained("w")
    for name in ("w", "stranger"):
        actions = server.get(decode_but_assign(large(epoch=2)), name)
        assert len(errors(actions, peer(name))) == 1
        assert runs_of(actions) == []


@for_each("names", [0, 3])
def test_the_tables_of_a_large_assignment_are_built(names: int) -> None:
    long = {**sgd(0.1).to_wire(), "groups": []}
    one = TableSpec(name="t", dim=4, optimizer=long, initial=Initial("normal", 0.0, 0.1).to_wire())
    tables = [replace(one, name=f"{number:0128d}") for number in range(64)]
    server = Server()
    message = decode_but_assign(large(tables=tables, names=names))
    assert isinstance(message, Large)
    (run,) = runs_of(server.get(message))
    (run,) = runs_of(server.build(run))
    assert [got.epoch for got in sent(server.build(run), m.Ready)] == [1]
    keyspace = server.machine.tenants[1].built().placement.keyspace
    assert (len(keyspace.parameters), keyspace.sparse) == (names, tuple(tables))


def test_stop_says_goodbye() -> None:
    server = Server.joined()
    actions = server.handle(Stop("SIGTERM"))
    assert len(sent(actions, m.Leave, COORDINATOR)) == 1
    assert exits_of(actions) == [exits.OK]


def test_a_silent_coordinator_ends_the_server_once() -> None:
    server = Server.joined()
    ends: list[int] = []
    heartbeats = 0
    while (due := server.machine.next_deadline()) is not None and due < 100:
        actions = server.machine.on_deadline(due)
        heartbeats += len(sent(actions, m.Heartbeat))
        ends += exits_of(actions)
    assert ends == [exits.COORDINATOR_LOST]
    assert heartbeats == 11


def test_a_server_that_ends_with_its_coordinator_says_so_to_its_clients() -> None:
    server = Server.trained("w")
    server.get(WELCOME)
    actions: list[Any] = []
    while (due := server.machine.next_deadline()) is not None and not exits_of(actions):
        actions = server.machine.on_deadline(due)
    (message,) = sent(actions, m.Error, peer("w"))
    error = from_wire(message.code, message.text, message.facts)
    assert message.request == 0
    assert isinstance(error, PeerLostError)
    assert (error.role, error.name) == ("coordinator", "the coordinator at tcp://coordinator:1")
    assert "has ended with it" in error.advice


def test_a_coordinator_that_was_started_again_ends_the_server_which_says_so_to_its_clients() -> None:
    server = Server.trained("w")
    unknown = m.Error.of(0, NotJoinedError("Heartbeat before Hello"))
    actions = server.get(unknown)
    assert exits_of(actions) == [exits.COORDINATOR_LOST]
    for message in sent(actions, m.Error, peer("w")):
        error = from_wire(message.code, message.text, message.facts)
        assert isinstance(error, CoordinatorRestartedError)
        assert "server 0 (s, host, pid 7) has ended with it, and its values are lost; start it again" in str(error)
    assert len(sent(actions, m.Error)) == 2
    assert server.get(unknown) == []


def test_a_coordinator_that_answers_keeps_the_server() -> None:
    server = Server.joined()
    while (due := server.machine.next_deadline()) is not None and due < 100:
        server.now = due
        assert exits_of(server.machine.on_deadline(due)) == []
        server.get(m.HeartbeatAck(1))


# --- workers ------------------------------------------------------------------------------------


def test_a_push_is_applied_on_arrival_and_pulled_after() -> None:
    server = Server.trained("w")
    (ack,) = sent(server.get(push(), "w"), m.Ack)
    assert (ack.request, list(ack.versions), list(ack.staleness)) == (101, [1], [0])
    (values,) = sent(server.get(pull(), "w"), m.Values)
    assert np.concatenate([np.frombuffer(b, np.float32) for b in values.payload]).tolist() == (-EIGHT).tolist()


def test_a_push_that_asks_for_the_values_after_it_is_told_its_staleness_too() -> None:
    server = Server.trained("w", "v")
    server.get(push(), "v")
    (values,) = sent(server.get(push(reply=1), "w"), m.Values)
    assert (list(values.versions), list(values.staleness)) == ([2], [1])


@for_each("reply", [0, 1])
def test_a_push_sent_again_is_answered_again_and_applied_once(reply: int) -> None:
    server = Server.trained("w", "v")
    kind = m.Values if reply else m.Ack
    (first,) = sent(server.get(push(reply=reply), "w"), kind)
    (again,) = sent(server.get(push(reply=reply), "w"), kind)
    assert (first.request, first.versions, first.staleness) == (again.request, again.versions, again.staleness)
    assert server.values()[:8] == (-EIGHT).tolist()
    assert server.machine.counters()["duplicates"] == 1
    server.get(push(), "v")
    assert server.values()[:8] == (-2 * EIGHT).tolist(), "another worker's sequence numbers are its own"


@for_each(
    "message, code",
    [
        (push(epoch=2), StaleEpochError.code),
        (push(epoch=0), StaleEpochError.code),
        (push(slice_=9), SliceRangeError.code),
        (push(value=EIGHT[:7]), ProtocolError.code),
        (push(examples=0), ProtocolError.code),
        (push(value=np.zeros(9, np.float32)), ProtocolError.code),
        (push(codec="zip"), CodecError.code),
        (push(value=np.full(8, np.nan, np.float32)), NonFiniteGradientError.code),
        (push(value=np.full(8, -np.inf, np.float32)), NonFiniteGradientError.code),
        (pull(epoch=2), StaleEpochError.code),
        (pull(slice_=9), SliceRangeError.code),
        (m.Pull(7, 1, 0, 0, "raw", ((0, 0, (1, 8)),)), SliceRangeError.code),
        (pull(codec="zip"), CodecError.code),
        (m.Load(7, 1, ((0, 0, ()),), (EIGHT,)), IdentityError.code),
        (m.Ready(1, 1), ProtocolError.code),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason_and_changes_nothing(message: Any, code: int) -> None:
    server = Server.trained("w")
    (answer,) = sent(server.get(message, "w"), m.Error, peer("w"))
    assert (answer.request, answer.code) == (getattr(message, "request", 0), code)
    assert server.values() == [0.0] * 16
    assert server.machine.counters()["refused"] == 1


def test_all_that_is_refused_is_counted_and_the_log_says_whose_it_was() -> None:
    server = Server.trained("w")
    zipped, nonsense = pull(codec="zip"), replace(assign(server.spec, placement(server.spec), epoch=5), job={})
    stranger = f"peer {alias(peer('stranger'))}"
    for name, message, who in (("w", zipped, "w"), ("stranger", zipped, stranger), (None, nonsense, "the coordinator")):
        actions = server.get(message, name)
        for run in runs_of(actions):
            actions = server.build(run)
        assert logged(actions).startswith(f"refused a request of {who}")
    assert server.machine.counters()["refused"] == 3


@for_each("message", [push(), m.Pull(7, 1, 0, 0, "raw", ())])
def test_a_request_before_hello_is_refused(message: Any) -> None:
    server = Server.trained()
    assert errors(server.get(message, "w")) == [NotJoinedError.code]


def test_a_server_tells_who_it_is_and_demands_no_signs_of_life() -> None:
    server = Server()
    server.get(m.Welcome(1, b"i" * 16, "c", 3, 1.0, 10.0, 5, 4))
    server.assign()
    (welcome,) = sent(server.get(ticketed("worker", "w"), "w"), m.Welcome)
    assert (welcome.name, welcome.rank, welcome.num_workers, welcome.num_servers) == ("s", 3, 5, 4)
    assert (welcome.heartbeat_interval, welcome.heartbeat_timeout) == (0.0, 0.0)


def test_a_request_before_there_are_values_is_refused() -> None:
    server = Server()
    assert errors(server.get(ticketed("worker", "w"), "w")) == [JobError.code]
    (run,) = runs_of(server.assign(build=False))
    server.get(ticketed("worker", "w"), "w")
    assert errors(server.get(push(), "w")) == [JobError.code]
    server.build(run)
    assert errors(server.get(pull(), "w")) == [JobError.code]


def test_an_observer_may_pull_but_not_push() -> None:
    server = Server.trained("o")
    assert len(sent(server.get(pull(), "o"), m.Values)) == 1
    assert errors(server.get(push(), "o")) == [IdentityError.code]
    assert server.values() == [0.0] * 16


@for_each(
    "changes, code",
    [
        ({"magic": "http"}, 20),
        ({"version": 1}, ProtocolVersionError.code),
        ({"version": 99}, ProtocolVersionError.code),
        ({"role": "coordinator"}, 20),
    ],
)
def test_a_hello_that_is_not_for_us_is_refused(changes: dict[str, Any], code: int) -> None:
    assert errors(Server().get(replace(ticketed("worker", "w"), **changes), "w")) == [code]


def test_a_worker_that_was_taken_for_dead_is_told_so_and_changes_nothing() -> None:
    server = Server.trained("w")
    server.get(push(), "w")
    server.get(m.Departed(ticketed("worker", "w").incarnation, 1))
    assert errors(server.get(push(seq=1), "w")) == [EvictedError.code], "a late resend is not applied again"
    assert errors(server.get(push(seq=2), "w")) == [EvictedError.code]
    assert errors(server.get(ticketed("worker", "w"), "w")) == [EvictedError.code]
    assert server.values()[:8] == (-EIGHT).tolist()


def test_with_as_many_workers_as_it_takes_a_server_refuses_another_and_still_knows_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zmqps.core.server.clients.MAX_CLIENTS", 2)
    server = Server()
    server.assign()
    for name in ("w", "x", "w"):
        assert len(sent(server.get(ticketed("worker", name), name), m.Welcome)) == 1
    assert errors(server.get(ticketed("worker", "y"), "y")) == [LimitError.code]
    assert len(sent(server.get(ticketed("worker", "x"), "x"), m.Welcome)) == 1


def test_a_worker_that_says_goodbye_is_forgotten() -> None:
    server = Server.trained("w")
    assert len(sent(server.get(m.Leave("finished"), "w"), m.Left)) == 1
    assert errors(server.get(push(), "w")) == [NotJoinedError.code]
    assert server.machine.counters()["clients"] == 1, "the loader"


def test_a_ledger_outlives_its_connection() -> None:
    server = Server.trained("w")
    server.get(push(), "w")
    server.get(ticketed("worker", "w"), "reconnected")
    assert len(sent(server.get(push(), "reconnected"), m.Ack)) == 1
    assert server.values()[:8] == (-EIGHT).tolist()


def test_initial_values_that_come_late_are_acknowledged_and_ignored() -> None:
    server = Server.trained("w")
    server.get(push(), "w")
    late = server.get(m.Load(9, 1, ((0, 0, ()), (1, 0, ())), (np.ones(16, np.float32),)), "loader")
    assert len(sent(late, m.Ack)) == 1
    assert sent(late, m.Ready) == []
    assert server.values()[:8] == (-EIGHT).tolist()


def test_rubbish_is_answered_with_its_error() -> None:
    assert errors(Server().handle(Undecodable(peer("x"), ProtocolError("no"))), peer("x")) == [ProtocolError.code]


class Once(RuleBasedStateMachine):
    """Pushes in any order, again and again, from workers that reconnect: each counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.server.train("w0", "w1")
        self.applied: set[tuple[str, int, int]] = set()

    @rule(name=st.sampled_from(["w0", "w1"]), seq=st.integers(1, 12), bad=st.booleans(), reply=st.integers(0, 1))
    def push(self, name: str, seq: int, bad: bool, reply: int) -> None:
        slice_ = seq % 2
        before = (name, seq, slice_) in self.applied
        value = np.full(8, np.nan if bad else 1.0, np.float32)
        codes = errors(self.server.get(push(seq=seq, value=value, slice_=slice_, reply=reply), name))
        assert codes == ([NonFiniteGradientError.code] if bad and not before else [])
        if not bad:
            self.applied.add((name, seq, slice_))

    @rule(name=st.sampled_from(["w0", "w1"]))
    def reconnect(self, name: str) -> None:
        self.server.get(ticketed("worker", name), name)

    @invariant()
    def values_are_the_sum_of_what_was_applied(self) -> None:
        counts = [sum(slice_ == i for _, _, slice_ in self.applied) for i in (0, 1)]
        assert self.server.values() == [-float(counts[0])] * 8 + [-float(counts[1])] * 8


Once.TestCase.settings = settings(max_examples=20, stateful_step_count=30)
TestOnce = Once.TestCase
