"""Large messages of clients are opened aside, and nobody else waits for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.machines import Coordinator, errors, job, peer, sent
from tests.tables import for_each
from zmqps.core.coordinator.described import Described
from zmqps.core.coordinator.openings import MAX_WAITING, SHARE
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Received, Returned, Run
from zmqps.core.protocol.messages.large import Large, decode_small
from zmqps.core.protocol.typed import pack
from zmqps.core.protocol.wire import MAX_SHORT_HEADER_NBYTES, encode
from zmqps.errors import ConfigurationError, JobMismatchError, ProtocolError
from zmqps.optim import sgd
from zmqps.rows.initial import Initial

MANY = [f"p{i}" for i in range(2000)]


class Opened(Coordinator):
    """A coordinator that gets what travels, and whose work aside is done when the test wants."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.aside: list[Run] = []

    def handle(self, event: Any) -> list[Action]:
        actions = super().handle(event)
        self.aside += [action for action in actions if isinstance(action, Run)]
        return actions

    def say(self, name: str, message: m.Message) -> list[Action]:
        return self.handle(Received(peer(name), decode_small(encode(message))))

    def finish(self, took: float = 0.0) -> list[Action]:
        run = self.aside.pop(0)
        self.now += took
        return self.handle(Returned(run.tag, run.work()))

    def later(self) -> None:
        due = self.machine.openings.next_deadline()
        assert due is not None
        self.now = max(self.now, due)
        self.aside += [action for action in self.machine.on_deadline(self.now) if isinstance(action, Run)]
        self.machine.validate()


def large(**options: Any) -> JobSpec:
    return job(*MANY, **options)


def test_a_large_job_is_read_aside_and_begins_then() -> None:
    coordinator = Opened.joined("s0", "w0")
    assert coordinator.say("w0", m.Init(1, large().to_wire())) == coordinator.aside
    assert coordinator.run().startup.job is None
    actions = coordinator.finish()
    assert coordinator.run().startup.job == large()
    (assign,) = sent(actions, m.Assign)
    assert encode(assign) == encode(replace(assign, job=large().to_wire()))
    coordinator.ready("s0", loaded=False)
    assert [got.job for got in sent(coordinator.ready("s0"), m.Job, peer("w0"))] == [large().to_wire()]


def test_a_large_job_of_tables_alone_begins() -> None:
    initial = Initial("normal", 0.0, 0.1).to_wire()
    one = TableSpec(name="t", dim=4, optimizer=sgd(0.1).to_wire(), initial=initial)
    spec = replace(job(), parameters=(), tables=tuple(replace(one, name=f"{number:0128d}") for number in range(64)))
    coordinator = Opened.joined("s0", "w0")
    coordinator.say("w0", m.Init(1, spec.to_wire()))
    assert len(sent(coordinator.finish(), m.Assign)) == 1
    assert coordinator.run().startup.job == spec


def test_the_same_job_of_another_worker_is_not_read_again() -> None:
    coordinator = Opened.joined("s0", "w0", "w1")
    coordinator.say("w0", m.Init(1, large().to_wire()))
    coordinator.finish()
    assert [got.request for got in sent(coordinator.say("w1", m.Init(7, large().to_wire())), m.Waiting)] == [7]
    assert coordinator.aside == []


def test_another_job_than_the_one_that_there_is_is_refused_with_what_differs() -> None:
    coordinator = Opened.joined("s0", "w0", "w1")
    coordinator.say("w0", m.Init(1, large().to_wire()))
    coordinator.finish()
    coordinator.say("w1", m.Init(2, large(learning_rate=0.5).to_wire()))
    coordinator.later()
    assert errors(coordinator.finish(), peer("w1")) == [JobMismatchError.code]


def test_a_job_that_began_while_another_one_was_read_is_what_that_is_compared_with() -> None:
    coordinator = Opened.joined("s0", "w0", "w1")
    coordinator.say("w0", m.Init(1, large().to_wire()))
    coordinator.init("w1", job())
    assert coordinator.run().startup.job == job()
    assert errors(coordinator.finish()) == []
    coordinator.later()
    assert errors(coordinator.finish(), peer("w0")) == [JobMismatchError.code]
    assert coordinator.run().startup.job == job()


def test_steps_go_on_while_a_message_is_opened() -> None:
    coordinator = Opened.trains("s0", "w0")
    coordinator.join("w1.other")
    coordinator.say("w1.other", m.Init(1, large().to_wire()))
    assert coordinator.aside
    assert errors(coordinator.take("w0", m.Arrive(2, 0, (1,)))) == []


def test_opening_takes_a_share_of_the_time_and_few_wait_for_it() -> None:
    coordinator = Opened()
    names = [f"w{i}.job{i}" for i in range(MAX_WAITING + 2)]
    coordinator.join("s0", *names)
    for name in (*names, names[0], names[1]):
        coordinator.say(name, m.Init(1, large().to_wire()))
    assert len(coordinator.aside) == 1
    coordinator.finish(took=0.5)
    assert coordinator.aside == []
    assert coordinator.machine.openings.next_deadline() == coordinator.now + SHARE * 0.5
    for _ in names[1:MAX_WAITING]:
        coordinator.later()
        coordinator.finish()
    assert coordinator.machine.openings.next_deadline() is None, "the others ask again"
    coordinator.say(names[-1], m.Init(1, large().to_wire()))
    coordinator.later()
    coordinator.finish()
    assert coordinator.run("job17").startup.job == large()


def test_what_cannot_be_read_is_refused_with_its_reason_and_holds_nothing() -> None:
    coordinator = Opened.joined("s0", "w0")
    twice = {**large().to_wire(), "parameters": [["w", [1], "float32"]] * 2000}
    header = [m.Init.kind, 3, twice]
    coordinator.handle(Received(peer("w0"), decode_small([pack(header)])))
    (refusal,) = sent(coordinator.finish(), m.Error, peer("w0"))
    assert (refusal.request, refusal.code) == (3, ConfigurationError.code)
    assert coordinator.run().startup.job is None


def test_a_worker_that_has_gone_meanwhile_begins_nothing() -> None:
    coordinator = Opened.joined("s0", "w0")
    coordinator.say("w0", m.Init(1, large().to_wire()))
    coordinator.wait(11.0, "s0")
    assert len(errors(coordinator.finish())) == 1
    assert coordinator.machine.runs == {}


def test_what_waits_of_a_worker_that_has_gone_is_not_read() -> None:
    coordinator = Opened.joined("s0", "w0.a", "w1.b", "w2.c")
    for name in ("w0.a", "w1.b", "w2.c"):
        coordinator.say(name, m.Init(1, large().to_wire()))
    coordinator.take("w1.b", m.Leave("closed"))
    coordinator.finish()
    coordinator.later()
    assert [run.tag.event.peer for run in coordinator.aside] == [peer("w2.c")]
    coordinator.take("w2.c", m.Leave("closed"))
    coordinator.finish()
    assert coordinator.machine.openings.next_deadline() is None


@for_each("who", ["w0", "o0", "s0", "nobody"])
def test_what_nobody_of_a_role_says_is_refused_unread(who: str) -> None:
    coordinator = Opened.joined("s0", "w0", "o0")
    long = m.Job(1, 1, {"x": "y" * MAX_SHORT_HEADER_NBYTES}, {}, 0, 0, 0, "", 0)
    (refusal,) = sent(coordinator.say(who, long), m.Error, peer(who))
    assert (refusal.request, refusal.code) == (1, ProtocolError.code)
    assert "takes no Job of 65," in refusal.text
    assert coordinator.aside == []


@for_each("message", [m.Init(1, large().to_wire()), m.Checkpoint(1, "", 0, {"x": "y" * (64 << 10)})])
@for_each("who", ["o", "nobody"])
def test_those_who_begin_and_save_nothing_keep_no_worker_from_beginning(who: str, message: m.Message) -> None:
    coordinator = Opened.joined("s0", "w0", *[f"o{i}" for i in range(MAX_WAITING + 2)])
    for i in range(MAX_WAITING + 2):
        coordinator.say(f"{who}{i}", message)
    coordinator.say("w0", m.Init(1, large().to_wire()))
    coordinator.finish()
    assert coordinator.run().startup.job == large()


def test_counters_of_servers_may_be_many_and_those_of_workers_may_not() -> None:
    coordinator = Opened.joined("s0", "w0")
    counters = {"memory_nbytes": 7, "x": "y" * MAX_SHORT_HEADER_NBYTES}
    assert errors(coordinator.say("s0", m.Heartbeat(counters))) == []
    assert [server.reported.memory_nbytes for server in coordinator.machine.servers] == [7]
    assert errors(coordinator.say("w0", m.Heartbeat(counters))) == [ProtocolError.code]


def test_an_older_map_is_passed_on_with_the_mode_that_its_staleness_was() -> None:
    older = {name: value for name, value in job().to_wire().items() if name != "mode"} | {"staleness": 3}
    found = Described.of(older, None, "", "default")
    assert (found["mode"], found["staleness"]) == ("bounded", 3)
    assert found.packed == pack(found.job.to_wire())


def test_a_small_message_is_decoded_at_once() -> None:
    message = m.Init(1, job().to_wire())
    assert decode_small(encode(message)) == message
    found = decode_small(encode(m.Init(9, large().to_wire())))
    assert isinstance(found, Large)
    assert (found.cls, found.request, found.opened()) == (m.Init, 9, m.Init(9, large().to_wire()))
    assert found.is_init_of(pack(large().to_wire()))
    assert not found.is_init_of(pack(large(learning_rate=2.0).to_wire()))
