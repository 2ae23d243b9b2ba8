"""The driver loop: events in, actions out, one timer, and no defect ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.core.machines import hello
from tests.logged import logged
from tests.net.clock import Time
from tests.pace import allow
from tests.tables import for_each
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connect,
    Disconnect,
    Exit,
    Log,
    Received,
    Resolve,
    Returned,
    Run,
    Send,
    Stop,
    Undecodable,
)
from zmqps.core.protocol.messages import EndJob, Error, Left, Message, Released, Status, StatusRequest, Values
from zmqps.core.protocol.wire import MAX_HEADER_NBYTES, decode, encode
from zmqps.errors import DeviceError, InternalError, ProtocolError
from zmqps.logs.handler import fields_of
from zmqps.net import loops
from zmqps.net.driver import LINGER_S, STANDSTILL_S, Driver
from zmqps.net.transport import INBOUND

LOG = logging.getLogger("zmqps.test")


#: Whose connection has ended.
GONE = b"gone"


class FakeTransport:
    """Notes what the driver asks for; ``receive`` plays the network."""

    def __init__(self) -> None:
        self.started: Callable[[], None] = lambda: None
        self.connected: list[tuple[bytes, str]] = []
        self.disconnected: list[bytes] = []
        self.sent: list[tuple[bytes, Any, Any]] = []
        self.closed: list[float] = []
        self.num_made_room = 0

    def start(self, deliver: Callable[..., None], delivered: Callable[[], None], noticed: Any) -> None:
        self._deliver, self._delivered = deliver, delivered
        asyncio.get_running_loop().call_soon(self.started)

    def make_room(self) -> None:
        self.num_made_room += 1

    def receive(self, *frames: bytes, peer: bytes = COORDINATOR) -> None:
        self._deliver(peer, frames)
        self._delivered()

    def bind(self, endpoint: str) -> str:
        raise NotImplementedError

    def greeted(self, peer: bytes, capabilities: Sequence[str]) -> None:
        pass

    def origin(self, peer: bytes) -> str | None:
        return None if peer == GONE else f"the host of {peer.decode()}"

    def holder(self, peer: bytes) -> None:
        return None

    def connect(self, peer: bytes, endpoint: str) -> None:
        self.connected.append((peer, endpoint))

    def disconnect(self, peer: bytes) -> None:
        self.disconnected.append(peer)

    def send(self, peer: bytes, frames: Sequence[Any], readers: Sequence[list[Any]]) -> bool:
        self.sent.append((peer, decode(frames), readers))
        return True

    def close(self, linger: float) -> None:
        self.closed.append(linger)


class FakeMachine:
    """Answers each event by what the test says."""

    title = "node 3 (n, host, pid 7)"

    def __init__(self, answer: Callable[[Any], list[Action]], start: Sequence[Action] = ()) -> None:
        self.answer = answer
        self.first = list(start)
        self.events: list[Any] = []
        self.deadline: float | None = None
        self.rung: list[float] = []
        self.on_ring: Callable[[], list[Action]] = lambda: [Exit(0, "rung")]

    def start(self, now: float) -> list[Action]:
        return self.first

    def handle(self, event: Any, now: float) -> list[Action]:
        self.events.append(event)
        return self.answer(event)

    def next_deadline(self) -> float | None:
        return self.deadline

    def on_deadline(self, now: float) -> list[Action]:
        self.rung.append(now)
        self.deadline = None
        return self.on_ring()

    def validate(self) -> None:
        pass


def drive(
    machine: FakeMachine,
    scenario: Callable[[Driver, FakeTransport], None] = lambda driver, transport: None,
    resolve: Callable[[Any, Any], None] | None = None,
    failed: Callable[[InternalError], None] | None = None,
) -> tuple[Exit, Driver, FakeTransport]:
    """Run a driver until it exits, the scenario being played once it runs."""
    transport = FakeTransport()
    driver = Driver(machine, transport, LOG, resolve, failed=failed)

    transport.started = lambda: scenario(driver, transport)

    async def run() -> Exit:
        return await asyncio.wait_for(driver.run(), 20)

    return asyncio.run(run()), driver, transport


def test_actions_are_executed_and_exit_ends_it() -> None:
    readers: list[Any] = []
    resolved: list[Any] = []
    actions = [
        Connect(COORDINATOR, "tcp://x:1"),
        Send(COORDINATOR, Left(), (readers,)),
        Resolve("op", 5),
        Disconnect(b"server-0"),
        Exit(3, "x"),
    ]
    machine = FakeMachine(lambda event: [], actions)
    end, _, transport = drive(machine, resolve=lambda *pair: resolved.append(pair))
    assert end == Exit(3, "x")
    assert transport.connected == [(COORDINATOR, "tcp://x:1")]
    assert transport.disconnected == [b"server-0"]
    assert transport.sent == [(COORDINATOR, Left(), (readers,))]
    assert resolved == [("op", 5)]
    assert transport.closed == [LINGER_S]


def test_who_has_gone_before_its_hello_is_read_does_not_join() -> None:
    machine = FakeMachine(lambda event: [Exit(0, "")])

    def scenario(driver: Driver, transport: FakeTransport) -> None:
        transport.receive(*encode(hello("worker")), peer=GONE)
        transport.receive(*encode(Left()))

    drive(machine, scenario)
    assert machine.events == [Received(COORDINATOR, Left())]


def test_what_comes_is_decoded_or_handed_over_as_undecodable() -> None:
    machine = FakeMachine(lambda event: [Exit(0, "")] if len(machine.events) == 2 else [])

    def scenario(driver: Driver, transport: FakeTransport) -> None:
        transport.receive(b"\xc1")
        transport.receive(*encode(Released(4, 0)))

    _, driver, _ = drive(machine, scenario)
    bad, good = machine.events
    assert isinstance(bad, Undecodable)
    assert isinstance(bad.error, ProtocolError)
    assert good == Received(COORDINATOR, Released(4, 0))
    assert driver.counters == {"undecodable": 1}


@for_each("wrong", [b"\xc1", b"\x91\xcc\xff", bytes(MAX_HEADER_NBYTES + 1)])
def test_frames_that_cannot_be_decoded_are_free_when_the_machine_is_done_with_them(wrong: bytes) -> None:
    frame = bytearray(wrong)
    failed: list[BufferError] = []

    def forget(event: Any) -> list[Action]:
        machine.events.clear()
        return [Exit(0, "")] if isinstance(event, Stop) else []

    machine = FakeMachine(forget)

    def scenario(driver: Driver, transport: FakeTransport) -> None:
        gc.disable()  # it may be minutes before it looks
        try:
            transport.receive(frame)
            frame.append(0)  # while anybody has a view of it that is an error
        except BufferError as error:
            failed.append(error)
        finally:
            gc.enable()
            driver.submit(Stop("the test is over"))

    drive(machine, scenario)
    assert not failed


def test_the_first_exit_counts() -> None:
    end, _, _ = drive(FakeMachine(lambda event: [], [Exit(1, "first"), Exit(2, "second")]))
    assert end == Exit(1, "first")


def test_the_timer_is_set_when_the_machine_starts() -> None:
    machine = FakeMachine(lambda event: [])
    machine.deadline = 0.0  # long ago
    end, _, _ = drive(machine)
    assert end.reason == "rung"


def test_the_timer_moves_with_the_deadline() -> None:
    def sooner(event: Any) -> list[Action]:
        machine.deadline = asyncio.get_running_loop().time()
        return []

    machine = FakeMachine(sooner)
    machine.deadline = 1e12
    assert drive(machine, lambda driver, transport: driver.submit("hurry"))[0].reason == "rung"
    machine = FakeMachine(sooner)
    machine.deadline = 1e12
    assert drive(machine, lambda driver, transport: transport.receive(*encode(Left())))[0].reason == "rung"


def test_the_timer_rings_no_earlier_than_the_deadline_and_again_for_the_next() -> None:
    dues: list[float] = []

    def ring_again() -> list[Action]:
        if len(dues) == 4:
            return [Exit(0, "")]
        dues.append(asyncio.get_running_loop().time() + 0.002)
        machine.deadline = dues[-1]
        return []

    machine = FakeMachine(lambda event: [])
    machine.deadline = 0.0
    machine.on_ring = ring_again
    drive(machine)
    resolution = 1e-3  # of the loop's clock
    assert all(rung >= due - resolution for due, rung in zip(dues, machine.rung[1:], strict=True))


def test_a_deadline_that_goes_away_takes_its_timer_along() -> None:
    def nothing_due(event: Any) -> list[Action]:
        if event == "last":
            return [Exit(0, "not rung")]
        machine.deadline = None
        return []

    machine = FakeMachine(nothing_due)

    def scenario(driver: Driver, transport: FakeTransport) -> None:
        machine.deadline = asyncio.get_running_loop().time()
        driver.submit("arm")
        loop = asyncio.get_running_loop()
        loop.call_later(0.005, driver.submit, "last")

    assert drive(machine, scenario)[0].reason == "not rung"
    assert machine.rung == []


def test_long_work_is_done_aside_and_its_outcome_comes_back() -> None:
    threads: list[threading.Thread] = []

    def work() -> str:
        threads.append(threading.current_thread())
        return "built"

    def broken() -> None:
        raise MemoryError("no room")

    machine = FakeMachine(
        lambda event: [Exit(0, "")] if len(machine.events) == 2 else [], [Run("a", work), Run("b", broken)]
    )
    drive(machine)
    outcomes = {event.tag: event.value for event in machine.events if isinstance(event, Returned)}
    assert outcomes["a"] == "built"
    assert isinstance(outcomes["b"], MemoryError)
    assert threads != [threading.current_thread()]


def test_a_defect_of_the_machine_is_logged_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    def answer(event: Any) -> list[Action]:
        if event == "defect":
            raise ZeroDivisionError("a defect")
        return [Exit(0, "went on")]

    def scenario(driver: Driver, transport: FakeTransport) -> None:
        driver.submit("defect")
        driver.submit("next")

    end, driver, _ = drive(FakeMachine(answer), scenario)
    assert end.reason == "went on"
    assert driver.counters["internal_errors"] == 1
    assert "please report it" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_action_that_fails_does_not_take_the_others_along(caplog: pytest.LogCaptureFixture) -> None:
    too_long = Send(COORDINATOR, Status(1, {"text": "x" * MAX_HEADER_NBYTES}))
    _, driver, transport = drive(FakeMachine(lambda event: [], [too_long, Send(COORDINATOR, Left()), Exit(0, "")]))
    assert [message for _, message, _ in transport.sent] == [Left()]
    assert driver.counters["internal_errors"] == 1
    assert "LimitError" in caplog.text


CLIENT = INBOUND + b"client"


def test_a_message_that_there_is_no_memory_for_is_lost_as_on_a_network(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: Any) -> Any:
        raise MemoryError("no room")

    def scenario(driver: Driver, transport: FakeTransport) -> None:
        for _ in range(100):
            with monkeypatch.context() as patch:
                patch.setattr(driver, "decode", full)
                transport.receive(*encode(Left()), peer=CLIENT)
        with monkeypatch.context() as patch:
            patch.setattr("zmqps.net.driver.encode", full)
            driver.submit("answer")
        driver.submit("end")

    answers: dict[Any, list[Action]] = {"answer": [Send(CLIENT, Left())], "end": [Exit(0, "")]}
    _, driver, transport = drive(FakeMachine(lambda event: answers[event]), scenario)
    assert driver.counters == {"out_of_memory": 101}
    assert transport.num_made_room == 101
    assert transport.sent == []
    assert "no memory for a message: no room" in caplog.text
    assert len(caplog.records) < 50


def broken(event: Any) -> list[Action]:
    """Meet a defect at every message."""
    if isinstance(event, Received):
        raise ZeroDivisionError("a defect")
    return [Exit(0, str(event))]


def test_a_request_that_meets_a_defect_is_answered_by_an_error_that_names_the_node() -> None:
    def scenario(driver: Driver, transport: FakeTransport) -> None:
        transport.receive(*encode(StatusRequest(9)), peer=CLIENT)
        transport.receive(*encode(Left()), peer=CLIENT)  # nobody waits for anything
        transport.receive(*encode(StatusRequest(9)))  # of a connection opened here: it is no request to us
        driver.submit("end")

    _, driver, transport = drive(FakeMachine(broken), scenario)
    error = InternalError(node="node 3 (n, host, pid 7)", what="ZeroDivisionError: a defect")
    assert transport.sent == [(CLIENT, Error(9, error.code, str(error), error.facts()), ())]
    assert driver.counters["internal_errors"] == 3
    assert "please report it" in str(error)


def test_an_answer_that_cannot_be_sent_is_replaced_by_an_error() -> None:
    too_long = Send(CLIENT, Status(4, {"text": "x" * MAX_HEADER_NBYTES}))
    _, _, transport = drive(FakeMachine(lambda event: [], [too_long, Exit(0, "")]))
    ((peer, message, _),) = transport.sent
    assert (peer, type(message), message.request, message.code) == (CLIENT, Error, 4, InternalError.code)


def test_who_is_told_of_a_defect_has_the_exception_behind_it_and_the_machine_says_goodbye() -> None:
    told: list[InternalError] = []
    machine = FakeMachine(broken)
    end, _, transport = drive(machine, lambda _, transport: transport.receive(*encode(Left())), failed=told.append)
    (error,) = told
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert machine.events[-1] == Stop("closed")
    assert end == Exit(0, str(Stop("closed")))
    assert transport.sent == []


def test_a_machine_that_cannot_even_say_goodbye_ends_all_the_same() -> None:
    def always(event: Any) -> list[Action]:
        raise ZeroDivisionError("a defect")

    told: list[InternalError] = []
    end, driver, _ = drive(FakeMachine(always), lambda driver, _: driver.submit("defect"), failed=told.append)
    assert len(told) == 1
    assert (end.code, end.reason) == (exits.FAILED, str(told[0]))
    assert driver.counters["internal_errors"] == 2


def test_words_go_to_the_log_at_their_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "zmqps.test")
    levels = ["debug", "info", "warning", "error"]
    drive(FakeMachine(lambda event: [], [*(Log(level, f"100% {level}") for level in levels), Exit(0, "")]))
    assert [(r.levelname.lower(), r.message) for r in logged(caplog)] == [(level, f"100% {level}") for level in levels]


def test_what_words_are_about_goes_to_the_log_with_them(caplog: pytest.LogCaptureFixture) -> None:
    log = Log("warning", "lost it", job="digits", peer="worker-2", error="Z006")
    drive(FakeMachine(lambda event: [], [log, Exit(0, "")]))
    (record,) = logged(caplog)
    assert fields_of(record) == {"job": "digits", "peer": "worker-2", "error": "Z006"}


def test_events_after_the_end_are_ignored() -> None:
    machine = FakeMachine(lambda event: [], [Exit(0, "")])
    _, driver, _ = drive(machine)
    driver.submit("too late")
    assert machine.events == []


def test_no_timer_is_set_after_the_end() -> None:
    machine = FakeMachine(lambda event: [], [Exit(0, "")])
    transport = FakeTransport()

    async def run() -> None:
        await Driver(machine, transport, LOG).run()
        machine.deadline = 0.0
        transport._delivered()  # as by what a closed transport had planned to do
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert machine.rung == []


def test_a_transport_that_cannot_start_is_closed() -> None:
    transport = FakeTransport()

    def start(*_: Any) -> None:
        raise OSError("no shared memory")

    transport.start = start  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no shared memory"):
        asyncio.run(Driver(FakeMachine(lambda event: []), transport, LOG).run())
    assert transport.closed == [LINGER_S]


def end_with_it(driver: Driver, transport: FakeTransport) -> None:
    """End the driver once something that is no Left was sent."""
    sending = transport.send

    def send(peer: bytes, frames: Sequence[Any], readers: Sequence[list[Any]]) -> bool:
        if type(decode(frames)) is not Left:
            asyncio.get_running_loop().call_soon(driver.submit, "sent")
        return sending(peer, frames, readers)

    transport.send = send  # type: ignore[method-assign]


class Copy:
    """A payload that is still on its way from a device."""

    def __init__(self, error: Exception | None = None) -> None:
        self.finish = threading.Event()
        self.error = error

    def wait(self) -> None:
        assert self.finish.wait(allow(10))
        if self.error is not None:
            raise self.error


def test_a_message_leaves_when_its_payload_is_whole_and_others_may_overtake_it() -> None:
    copy = Copy()
    payload = bytearray(4)
    readers: list[Any] = []

    def answer(event: Any) -> list[Action]:
        if event == "sent":
            return [Exit(0, "")]
        payload[:] = b"done"
        copy.finish.set()
        return []

    def let_it_come(driver: Driver, transport: FakeTransport) -> None:
        assert [type(message) for _, message, _ in transport.sent] == [Left]
        end_with_it(driver, transport)
        transport.receive(*encode(Left()))

    late = Send(COORDINATOR, Values(1, "raw", (), (), (payload,)), (readers,), copy)
    machine = FakeMachine(answer, [late, Send(COORDINATOR, Left())])
    _, _, transport = drive(machine, let_it_come)
    assert [type(message) for _, message, _ in transport.sent] == [Left, Values]
    assert bytes(transport.sent[1][1].payload[0]) == b"done"
    assert transport.sent[1][2] == (readers,)


def test_a_payload_that_cannot_be_had_is_answered_by_its_error(caplog: pytest.LogCaptureFixture) -> None:
    copy = Copy(DeviceError("the device has gone"))
    copy.finish.set()
    machine = FakeMachine(lambda event: [Exit(0, "")], [Send(COORDINATOR, Values(7, "raw", (), (), ()), (), copy)])

    _, _, transport = drive(machine, end_with_it)
    error = DeviceError("the device has gone")
    assert transport.sent == [(COORDINATOR, Error(7, error.code, str(error), error.facts()), ())]
    assert "the device has gone" in caplog.text


@for_each("message, origin", [(hello("worker"), "the host of x"), (EndJob(1, "a"), "the host of x"), (Left(), "")])
def test_the_transport_says_where_a_stranger_comes_from_that_introduces_itself(message: Message, origin: str) -> None:
    machine = FakeMachine(lambda event: [Exit(0, "seen")])
    drive(machine, lambda driver, transport: transport.receive(*encode(message), peer=b"x"))
    (event,) = machine.events
    assert (event.message, event.origin) == (message, origin)


def test_only_what_a_node_stands_still_once_it_has_begun_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, told = Time(), list[bool]()
    monkeypatch.setattr(loops, "time", clock)
    machine = FakeMachine(lambda event: [])

    def ring() -> list[Action]:
        told.append("stood still" in caplog.text)
        if len(told) == 2:
            return [Exit(0, "told")]
        machine.deadline = asyncio.get_running_loop().time()
        clock.now += 2 * STANDSTILL_S  # stopped
        return []

    async def begin() -> None:
        clock.now += 2 * STANDSTILL_S  # it compiles, say
        machine.deadline, machine.on_ring = asyncio.get_running_loop().time(), ring
        await Driver(machine, FakeTransport(), LOG).run()

    loops.run(begin())
    assert told == [False, True]
