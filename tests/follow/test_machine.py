"""A reader and a follower over a network that loses connections and messages: each lookup is answered once, rightly."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.follow.test_copies import DIM, NONE, numbers, spec
from tests.tables import for_each
from zmqps import optim
from zmqps.client.sparse.tables import table
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import (
    Connected,
    Disconnected,
    Exit,
    Received,
    Resolve,
    Send,
    Stop,
    Undecodable,
    Unreachable,
)
from zmqps.core.protocol.wire import decode, encode
from zmqps.core.server.tables.rows import MAX_ANSWER_NBYTES
from zmqps.errors import (
    ClosedError,
    CodecError,
    DeadlineError,
    IdentityError,
    LimitError,
    NotJoinedError,
    ProtocolError,
    PSError,
)
from zmqps.follow.asking import PEER, Lookup, LookupMachine
from zmqps.follow.copies import TableCopy
from zmqps.follow.machine import Caught, Changed, FollowerMachine
from zmqps.net.identity import new_identity

READER = b"reader"


def follower(*, filled: bool = True) -> FollowerMachine:
    machine = FollowerMachine(new_identity("observer", name="follower"))
    if filled:
        copy = TableCopy(spec())
        copy.change(NONE, np.arange(10), np.arange(10, dtype=np.float32)[:, None] + np.zeros((1, DIM), np.float32))
        machine.handle(Caught(copy, 3), 0.0)
    return machine


def received(machine: Any, message: m.Message, peer: bytes = READER) -> list[Any]:
    actions = machine.handle(Received(peer, decode(encode(message))), 0.0)
    machine.validate()
    return list(actions)


def hello(role: str = "observer") -> m.Hello:
    return new_identity(role).hello()


def pull(*ids: int, codec: str = "raw", count: int | None = None) -> m.PullRows:
    return m.PullRows(5, 0, 0, codec, 0, len(ids) if count is None else count, [numbers(*ids)])


def sent(actions: list[Any]) -> m.Message:
    [message] = [action.message for action in actions if isinstance(action, Send)]
    return message


class Net:
    """The connection between a reader and a follower."""

    def __init__(self, machine: FollowerMachine) -> None:
        self.now = 0.0
        self.server = machine
        self.client = LookupMachine(new_identity("observer"), "tcp://127.0.0.1:1")
        self.outcomes: dict[Lookup, list[Any]] = {}
        self.wires: dict[bytes, deque[m.Message]] = {PEER: deque(), READER: deque()}
        self.open = True
        self.do(self.client.start(0.0))

    def do(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, Resolve) and isinstance(action.operation, Lookup):
                self.outcomes[action.operation].append(action.value)
            elif isinstance(action, Send) and self.open:
                self.wires[action.peer].append(decode(encode(action.message)))
        self.client.validate()
        self.server.validate()

    def ask(self, ids: Any, timeout: float = 100.0, codec: str = "raw") -> Lookup:
        lookup = Lookup(ids=np.asarray(ids, np.int64), codec=codec, timeout=timeout, future=None)
        self.outcomes[lookup] = []
        self.do(self.client.handle(lookup, self.now))
        return lookup

    def deliver(self, to: bytes) -> None:
        if self.wires[to]:
            message = self.wires[to].popleft()
            machine, sender = (self.server, READER) if to == PEER else (self.client, PEER)
            self.do(machine.handle(Received(sender, message), self.now))

    def cut(self) -> None:
        self.open = False
        for wire in self.wires.values():
            wire.clear()
        self.do(self.client.handle(Disconnected(PEER), self.now))
        self.do(self.server.handle(Disconnected(READER), self.now))

    def join(self) -> None:
        self.open = True
        self.do(self.client.handle(Connected(PEER), self.now))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.client.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.do(self.client.on_deadline(self.now))
        self.now = until

    def settle(self) -> None:
        while any(self.wires.values()):
            for to in (PEER, READER):
                self.deliver(to)


@given(st.lists(st.sampled_from("aaaacbjdrRRw"), max_size=60), st.booleans())
def test_each_lookup_has_one_outcome_and_rows_of_some_moment(events: list[str], filled: bool) -> None:
    net = Net(follower(filled=filled))
    asked = 0
    for event in events:
        if event == "a":
            net.ask([asked % 12, 3], timeout=40.0)
            asked += 1
        elif event == "c" and net.open:
            net.cut()
        elif event == "j" and not net.open:
            net.join()
        elif event == "d" and net.wires[PEER]:  # lost with the follower, which the connection tells
            net.cut()
        elif event in "rR":
            net.deliver(PEER if event == "r" else READER)
            net.deliver(READER if event == "r" else PEER)
        elif event == "w":
            net.wait(3.0)
        elif event == "b" and net.server.copy is None:
            net.server.handle(Caught(follower().copy, 4), net.now)  # type: ignore[arg-type]
    if net.server.copy is None:
        net.server.handle(Caught(follower().copy, 4), net.now)  # type: ignore[arg-type]
    if not net.open:
        net.join()
    for _ in range(4):
        net.settle()
        net.wait(2.0)
    net.settle()
    assert len(net.outcomes) == asked
    for lookup, outcome in net.outcomes.items():
        [value] = outcome
        if isinstance(value, PSError):
            assert isinstance(value, DeadlineError)
        else:
            expected = [float(number) if number < 10 else 0.0 for number in lookup.ids.tolist()]
            assert value.tolist() == [[row] * DIM for row in expected]


def test_a_lookup_in_time_waits_for_the_follower_to_have_a_copy() -> None:
    net = Net(follower(filled=False))
    early, late = net.ask([1], timeout=5.0), net.ask([1], timeout=1.0)
    net.settle()
    net.wait(2.0)
    [error] = net.outcomes[late]
    assert isinstance(error, DeadlineError)
    assert "have a copy of the table" in str(error)
    net.server.handle(Caught(follower().copy, 4), net.now)  # type: ignore[arg-type]
    net.wait(1.5)
    net.settle()
    [rows] = net.outcomes[early]
    assert rows.tolist() == [[1.0] * DIM]
    assert net.client.version == 4


def test_a_table_with_longer_rows_is_noticed_by_readers_that_are_there() -> None:
    net = Net(follower())
    before = net.ask([1])
    net.settle()
    longer = TableCopy(table(DIM + 2, optimizer=optim.sgd(1.0)).named("items"))
    longer.change(NONE, numbers(1), np.full((1, DIM + 2), 7, np.float32))
    net.do(net.server.handle(Caught(longer, 1), net.now))
    asked = [net.ask([1, 2], timeout=1.0) for _ in range(3)]
    net.settle()
    assert net.outcomes[before][0].shape == (1, DIM)
    for lookup in asked:
        [rows] = net.outcomes[lookup]
        assert rows.tolist() == [[7.0] * (DIM + 2), [0.0] * (DIM + 2)]


def test_an_answer_in_a_codec_that_is_unknown_fails_its_lookup() -> None:
    net = Net(follower())
    net.settle()
    pending = net.ask([1])
    net.do(net.client.handle(Received(PEER, m.Values(1, "no-such", (1,), (), [])), 0.0))
    assert [type(value) for value in net.outcomes[pending]] == [CodecError]


def test_a_reader_that_closes_fails_what_is_pending_and_what_follows() -> None:
    net = Net(follower())
    pending = net.ask([1])
    actions = net.client.handle(Stop("closed"), 0.0)
    net.do(actions)
    assert isinstance(actions[-1], Exit)
    assert [type(value) for value in net.outcomes[pending]] == [ClosedError]
    assert [type(value) for value in net.outcomes[net.ask([2])]] == [ClosedError]


def test_a_key_that_is_refused_is_said_to_each_lookup() -> None:
    net = Net(follower())
    pending = net.ask([1])
    net.do(net.client.handle(Unreachable(PEER, IdentityError("no")), 0.0))
    assert [type(value) for value in net.outcomes[pending]] == [IdentityError]
    assert [type(value) for value in net.outcomes[net.ask([2])]] == [IdentityError]
    assert net.client.next_deadline() is None


def test_something_else_at_the_address_is_no_follower() -> None:
    net = Net(follower())
    pending = net.ask([1])
    welcome = sent(received(net.server, hello()))
    assert isinstance(welcome, m.Welcome)
    net.do(net.client.handle(Received(PEER, replace(welcome, capabilities=())), 0.0))
    [error] = net.outcomes[pending]
    assert isinstance(error, ProtocolError)
    assert "is not a follower" in str(error)


def test_an_answer_of_other_bytes_is_an_error_of_its_lookup_alone() -> None:
    net = Net(follower())
    net.settle()
    first, second = net.ask([1]), net.ask([2])
    for request in (1, 2, 2, 9):
        rows = np.zeros((DIM if request == 2 else DIM - 1), np.float32)
        net.do(net.client.handle(Received(PEER, m.Values(request, "raw", (3,), (), [rows])), 0.0))
    assert [type(value) for value in net.outcomes[first]] == [ProtocolError]
    assert [rows.tolist() for rows in net.outcomes[second]] == [[[0.0] * DIM]]


def test_rows_travel_in_a_codec() -> None:
    net = Net(follower())
    net.settle()
    lookup = net.ask(np.arange(200) % 10, codec="bf16")
    question = net.wires[PEER][0]
    assert isinstance(question, m.PullRows)
    net.deliver(PEER)
    answer = net.wires[READER][0]
    assert isinstance(answer, m.Values)
    assert sum(memoryview(buffer).nbytes for buffer in answer.payload) == 200 * DIM * 2
    net.settle()
    assert net.outcomes[lookup][0][:, 0].tolist() == [float(number % 10) for number in range(200)]


# --- strangers --------------------------------------------------------------------------------


def test_a_follower_answers_only_readers_that_have_said_hello() -> None:
    machine = follower()
    answer = sent(received(machine, pull(1)))
    assert isinstance(answer, m.Error)
    assert answer.code == NotJoinedError.code
    assert isinstance(sent(received(machine, hello())), m.Welcome)
    assert isinstance(sent(received(machine, pull(1))), m.Values)
    machine.handle(Disconnected(READER), 0.0)
    assert isinstance(sent(received(machine, pull(1))), m.Error)


@for_each(
    "message, error",
    [
        (m.Push(1, 1, 0, 0, 0, 1, 0, 0, "raw", "raw", (), ((0, 0, ()),), [np.zeros(4, np.float32)]), IdentityError),
        (m.ScanRows(1, 0, 0, 0, 10), ProtocolError),
        (m.Pull(1, 0, 0, 0, "raw", ()), ProtocolError),
        (m.Heartbeat({}), ProtocolError),
        (pull(1, 2, count=3), ProtocolError),
        (pull(1, codec="topk"), ProtocolError),
        (pull(1, codec="no-such"), PSError),
        (pull(1, count=(1 << 64) - 1), ProtocolError),
        (pull(*[1] * (MAX_ANSWER_NBYTES // (4 * DIM) + 1)), LimitError),
    ],
)
def test_what_is_no_lookup_is_refused_and_changes_nothing(message: m.Message, error: type[PSError]) -> None:
    machine = follower()
    received(machine, hello())
    answer = sent(received(machine, message))
    assert isinstance(answer, m.Error)
    assert error is PSError or answer.code == error.code
    assert isinstance(sent(received(machine, pull(1))), m.Values)
    assert machine.counters == {"lookups": 1, "rows": 1, "refused": 1}


def test_a_server_or_another_version_is_not_welcomed() -> None:
    machine = follower()
    assert isinstance(sent(received(machine, hello("server"))), m.Error)
    assert isinstance(sent(received(machine, replace(hello(), version=1))), m.Error)
    refused = machine.handle(Undecodable(READER, ProtocolError("bytes")), 0.0)
    assert isinstance(sent(list(refused)), m.Error)


def test_changes_are_there_once_they_are_resolved() -> None:
    machine = follower()
    received(machine, hello())
    changed = Changed(numbers(1), numbers(2), np.full((1, DIM), 7, np.float32))
    assert machine.handle(changed, 0.0) == [Resolve(changed, None)]
    answer = sent(received(machine, pull(1, 2)))
    assert isinstance(answer, m.Values)
    rows = np.frombuffer(answer.payload[0], np.float32).reshape(2, DIM)
    assert rows.tolist() == [[0.0] * DIM, [7.0] * DIM]


def test_a_change_that_finds_no_memory_is_told_to_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = follower()
    received(machine, hello())
    monkeypatch.setattr(TableCopy, "change", lambda *parts: [0] * (1 << 62))
    changed = Changed(NONE, numbers(2), np.zeros((1, DIM), np.float32))
    [resolve] = machine.handle(changed, 0.0)
    assert isinstance(resolve, Resolve)
    assert isinstance(resolve.value, MemoryError)
    assert isinstance(sent(received(machine, pull(1))), m.Values)


def test_a_reader_may_have_as_much_unread_as_its_largest_lookup() -> None:
    assert follower(filled=False).largest_nbytes() == 0
    machine = follower()
    received(machine, hello())
    ids = np.zeros(machine.largest_nbytes() // 8, np.int64)
    assert isinstance(sent(received(machine, pull(*ids))), m.Values)
    assert isinstance(sent(received(machine, pull(*ids, 1))), m.Error)
