"""Fuzzing without sockets: whatever a peer sends, a machine answers it, stays sound and keeps its values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.strategies import NOISE, almost, messages, mutated
from tests.fuzz.cluster import (
    ASSIGN,
    EPOCH,
    INCARNATIONS,
    JOB,
    KEY,
    PLACEMENT,
    hello,
    ready_server,
    sends,
    ticketed,
    values_of,
)
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members import membership
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol.events import COORDINATOR, Exit, Received, Returned, Run, Undecodable
from zmqps.core.protocol.messages import (
    BY_KIND,
    Ack,
    Assign,
    Commit,
    Discard,
    Discarded,
    EndJob,
    Enter,
    Error,
    Forgotten,
    Heartbeat,
    Hello,
    Init,
    Leave,
    Load,
    Message,
    Pull,
    Push,
    Ready,
    Status,
    Values,
    Withdraw,
)
from zmqps.core.protocol.wire import decode, encode
from zmqps.core.server import clients
from zmqps.errors import BY_CODE, PSError
from zmqps.net.identity import new_identity

PEERS = st.sampled_from([b"@one", b"@two", b"@three"])
JOBS = ["default", "another", "", "a\nb"]
#: Who has stolen an incarnation has not its secret.
HELLOS = st.builds(
    hello,
    st.sampled_from(["worker", "observer", "server"]),
    st.sampled_from(INCARNATIONS),
    st.sampled_from(JOBS[:1] + JOBS),
    secret=st.sampled_from([None, None, None, b"a thief's secret"]),
)

#: By the rules, of another key, as one that was asked to load: whose connection speaks for it may change by the first.
TICKETED = st.builds(ticketed, st.sampled_from(["worker", "worker", "observer"]), st.sampled_from(INCARNATIONS))
STRANGE = st.builds(
    ticketed,
    st.just("worker"),
    st.sampled_from(INCARNATIONS),
    st.sampled_from([KEY, KEY, b"another job's ke"]),
    loads=st.booleans(),
)

INDICES = st.integers(0, len(PLACEMENT.slices[0]))
RANGES = st.lists(st.integers(0, 16), max_size=4, unique=True).map(sorted).filter(lambda r: len(r) % 2 == 0).map(tuple)
PARTS = st.lists(st.tuples(INDICES, st.integers(0, 3), RANGES), max_size=3).map(tuple)
EPOCHS = st.sampled_from([EPOCH, EPOCH, EPOCH, 0, 2])
SIZES = st.sampled_from([0, 8, 16, 32, 48, 64, 12, 200])
PAYLOADS = st.lists(SIZES.map(bytes) | SIZES.map(lambda n: b"\xff" * n), max_size=3).map(tuple)
CODECS = st.sampled_from(["raw", "raw", "raw", "zip", ""])
TERMS = st.sampled_from([(), (0.5,), (0.0, 1e30), (1.0, -1.0, 0.1)])
#: Requests that come close to what the server has.
DATA = (
    st.builds(
        Push,
        *(st.just(1), st.integers(0, 5), EPOCHS, st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)),
        *(st.integers(0, 2), st.just(0), CODECS, CODECS, TERMS, PARTS, PAYLOADS),
    )
    | st.builds(Pull, st.just(1), EPOCHS, st.integers(0, 3), st.integers(0, 1), CODECS, PARTS)
    | st.builds(Load, st.just(1), EPOCHS, PARTS, PAYLOADS)
)
SPECS = [JOB.to_wire(), {}, {**JOB.to_wire(), "nonfinite": "allow"}, {**JOB.to_wire(), "workers": 2}]
CONTROL = (
    st.builds(Init, st.integers(0, 3), st.sampled_from(SPECS))
    | st.builds(Enter, st.integers(0, 3), st.sampled_from(["a", "b"]))
    | st.builds(Withdraw, st.integers(0, 3))
    | st.builds(Ready, st.integers(0, 2), st.integers(0, 1))
    | st.builds(Leave, st.sampled_from(["finished", "closed", "x"]))
    | st.builds(Heartbeat, st.just({}) | st.just({"jobs": {"1": {"pushes": 3}, "2": 7}}))
    | st.builds(Discarded, st.integers(0, 3))
    | st.builds(Forgotten, st.binary(min_size=16, max_size=16))
    | st.builds(EndJob, st.integers(0, 3), st.sampled_from(JOBS))
    | st.builds(Error, st.integers(0, 2), st.sampled_from([*BY_CODE]), st.just("text"), st.just({"reason": "text"}))
)


def event(peer: bytes, frames: list[bytes]) -> Received | Undecodable:
    """Return what the driver would make of some frames."""
    try:
        return Received(peer, decode(frames))
    except PSError as error:
        return Undecodable(peer, error)


def events(close: st.SearchStrategy[Message]) -> st.SearchStrategy[list[Received | Undecodable]]:
    well_formed = st.builds(Received, PEERS, HELLOS | close | messages())
    odd = st.builds(event, PEERS, mutated() | almost() | NOISE)
    return st.lists(well_formed | well_formed | odd, min_size=1, max_size=12)


def check_server(events: list[Received | Undecodable]) -> None:
    machine = ready_server()
    for event in events:
        behind = {who: client.peer for who, client in machine.clients.by_incarnation.items()}
        before, pushes = values_of(machine), machine.counters().get("pushes", 0)
        answers = sends(machine.handle(event, 1.0))
        machine.validate()
        if isinstance(event, Received) and isinstance(event.message, Withdraw) and event.peer in behind.values():
            assert answers == []
            assert values_of(machine) == before
            continue
        assert [answer.peer for answer in answers] == [event.peer], "one answer, to who asked"
        answer = answers[0].message
        if isinstance(answer, Error):
            assert answer.code in BY_CODE
            assert values_of(machine) == before
        if machine.counters().get("pushes", 0) == pushes:
            assert values_of(machine) == before
        else:
            assert isinstance(answer, (Ack, Values))
            assert isinstance(event, Received)
            assert isinstance(event.message, Push)
            assert event.peer in behind.values(), "who pushes has shown a ticket on this connection"
        now = {who: client.peer for who, client in machine.clients.by_incarnation.items()}
        if now != behind:
            assert isinstance(event, Received)
            [who] = {who for who in {**behind, **now} if behind.get(who) != now.get(who)}
            if who in now:
                assert isinstance(event.message, Hello)
                tickets = [ticketed(event.message.role, who, loads=loads).secret for loads in (False, True)]
                assert (event.message.incarnation, now[who]) == (who, event.peer)
                assert event.message.secret in tickets, "nobody speaks for another without its ticket"
            else:
                assert isinstance(event.message, Leave)
                assert behind[who] == event.peer, "nobody leaves for another"


def check_coordinator(events: list[Received | Undecodable], servers: int, workers: int | None) -> None:
    options = CoordinatorOptions(servers=servers, workers=workers, heartbeat_timeout=3.5)
    machine = CoordinatorMachine(replace(new_identity("coordinator"), incarnation=b"c" * 16), options)
    machine.start(0.0)
    now = 0.0
    for event in events:
        now += 0.5
        due = machine.next_deadline()
        if due is not None and due <= now:
            sends(machine.on_deadline(now))
            machine.validate()
        secrets = {who: member.hello.secret for who, member in machine.membership.members.items()}
        actions = machine.handle(event, now)
        said = event.message if isinstance(event, Received) else None
        if isinstance(said, Hello) and said.secret != secrets.get(said.incarnation, said.secret):
            [answer] = [action.message for action in sends(actions) if action.peer == event.peer]
            assert isinstance(answer, Error), "a member's incarnation with another secret"
            assert machine.membership.members[said.incarnation].hello.secret == secrets[said.incarnation]
        for answer in sends(actions):
            assert not isinstance(answer.message, Error) or answer.message.code in BY_CODE
        machine.validate()
        if any(isinstance(action, Exit) for action in actions):
            return
    encode(Status(1, machine.status(now)))
    for _ in range(40):  # everybody falls silent: the end is orderly
        due = machine.next_deadline()
        if due is None or due > now + 100:
            break
        now = max(now, due)
        sends(machine.on_deadline(now))
        machine.validate()


TO_SERVER = events(TICKETED | STRANGE | DATA | DATA | st.just(Leave("closed")) | st.builds(Withdraw, st.integers(0, 3)))
TO_COORDINATOR = events(CONTROL | CONTROL | CONTROL), st.integers(1, 2), st.none() | st.integers(1, 2)


#: What a coordinator may say of jobs, in any order: some of it twice, or overtaken by what came after it.
OF_JOBS = st.lists(
    st.builds(lambda epoch: Received(COORDINATOR, replace(ASSIGN, epoch=epoch)), st.integers(1, 4))
    | st.builds(lambda epoch: Received(COORDINATOR, Discard(epoch)), st.integers(0, 4))
    | st.builds(
        lambda epoch, step: Received(COORDINATOR, Commit(epoch, step, ())), st.integers(0, 4), st.integers(0, 2)
    )
    | st.builds(Received, PEERS, HELLOS | DATA)
    | st.just("built"),
    max_size=20,
)


@given(OF_JOBS)
@settings(max_examples=20)
def test_a_server_keeps_what_is_assigned_and_nothing_of_what_has_ended(events) -> None:  # type: ignore[no-untyped-def]
    machine = ready_server()
    building: list[Run] = []
    assigned, ended = {EPOCH}, set()
    for event in [*events, *["built"] * 4]:  # in the end all that was begun is built
        if event == "built":
            actions = machine.handle(Returned(building[0].tag, building.pop(0).work()), 1.0) if building else []
        else:
            actions = machine.handle(event, 1.0)
            message = event.message
            if isinstance(message, Discard):
                ended.add(message.epoch)
                assert [a.message for a in sends(actions) if a.peer == COORDINATOR] == [Discarded(message.epoch)]
            elif isinstance(message, Assign):
                assigned.add(message.epoch)
        machine.validate()
        building += [action for action in actions if isinstance(action, Run)]
        assert len(building) <= 1, "one shard at a time"
        assert set(machine.tenants) == assigned - ended
    assert building == []
    assert all(tenant.shard is not None for tenant in machine.tenants.values())


@given(TO_SERVER)
@settings(max_examples=20)
def test_a_server_answers_everything_and_changes_values_by_pushes_only(events) -> None:  # type: ignore[no-untyped-def]
    check_server(events)


@given(*TO_COORDINATOR)
@settings(max_examples=20)
def test_a_coordinator_stays_sound_whoever_says_what(events, servers, workers) -> None:  # type: ignore[no-untyped-def]
    check_coordinator(events, servers, workers)


@pytest.mark.slow
@given(TO_SERVER)
@settings(max_examples=2000)
def test_a_server_answers_everything_for_long(events) -> None:  # type: ignore[no-untyped-def]
    check_server(events)


@pytest.mark.slow
@given(*TO_COORDINATOR)
@settings(max_examples=1000)
def test_a_coordinator_stays_sound_for_long(events, servers, workers) -> None:  # type: ignore[no-untyped-def]
    check_coordinator(events, servers, workers)


def test_a_server_has_room_for_a_bounded_number_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 20)
    monkeypatch.setattr(clients, "MAX_BARRED", 20)
    machine = ready_server()
    for i in range(100):
        greeting = ticketed("observer", i.to_bytes(16, "big"))
        [answer] = sends(machine.handle(Received(b"@%d" % i, greeting), 1.0))
        machine.validate()
    assert isinstance(answer.message, Error)
    assert "number of workers" in answer.message.text
    known = ticketed("observer", bytes(16))
    for i in range(100):  # one incarnation on ever new connections
        machine.handle(Received(b"@again %d" % i, known), 1.0)
        machine.validate()
    assert len(machine.clients) == 20


def test_a_coordinator_has_room_for_a_bounded_number_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MAX_MEMBERS", 20)
    machine = CoordinatorMachine(new_identity("coordinator"), CoordinatorOptions(heartbeat_timeout=1.0))
    machine.start(0.0)
    for life in range(5):
        for i in range(30):
            machine.handle(Received(b"@%d" % i, hello("observer", bytes([life, i]) * 8)), float(10 * life))
            machine.validate()
        assert len(machine.membership.members) == 20
        machine.on_deadline(10.0 * life + 5)
        machine.validate()
        assert not machine.membership.members


def test_every_kind_of_message_is_refused_before_hello() -> None:
    machine = ready_server()
    kinds = [kind for kind in BY_KIND.values() if kind not in (Hello, Leave)]  # Leave may be late, and is answered

    @given(st.tuples(*[messages(kind) for kind in kinds]))
    @settings(max_examples=4)
    def refused(all_kinds: tuple[Message, ...]) -> None:
        for message in all_kinds:
            [answer] = sends(machine.handle(Received(b"@stranger", message), 1.0))
            assert isinstance(answer.message, Error)
            assert answer.message.code == 23

    before = values_of(machine)
    refused()
    assert values_of(machine) == before
