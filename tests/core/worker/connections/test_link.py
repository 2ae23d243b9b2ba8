"""A worker's connection to one server: the window, the retries, and what is given up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.core.machines import hello, job, placement, sent
from tests.tables import for_each
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.node.handshake import BROKEN_LOOK_S, FIRST_RETRY_S, Handshake
from zmqps.core.node.handshake import SLOWEST_RETRY_S as SLOWEST_HELLO_S
from zmqps.core.protocol.encoding import CODING, Coding
from zmqps.core.protocol.events import Action, Look, Send, server_peer
from zmqps.core.protocol.message import PUSH_WINDOW
from zmqps.core.protocol.messages import Ack, Hello, Load, Pull, Push, Values, Welcome, Withdraw
from zmqps.core.worker import transfer as transfers
from zmqps.core.worker.connections.link import (
    MAX_OUT,
    PROBE_S,
    SHORT_S,
    SLOWEST_PROBE_S,
    SLOWEST_RETRY_S,
    WINDOW_NBYTES,
    Link,
    LinkCommons,
    Resends,
    ShardServer,
    SilenceProbe,
)
from zmqps.core.worker.transfer import Delay, Source, Target, Transfer, plan
from zmqps.errors import PeerLostError, ProtocolError
from zmqps.optim import sgd

WELCOME = Welcome(1, b"i" * 16, "s0", 0, 0.0, 0.0, 1, 1)


class Connection:
    """A link, its clock, and its invariants checked after every event."""

    def __init__(self, spec: JobSpec | None = None, slice_nbytes: int = 32, *, welcome: bool = True) -> None:
        self.spec = spec or job("a", "b", "c")
        self.placement = placement(self.spec, 1, slice_nbytes)
        handshake = Handshake(hello("worker"), server_peer(0), "tcp://s0:1")
        self.link = Link(
            ShardServer(title="server 0", handshake=handshake, proof=b"", epoch=1), len(self.placement.slices[0])
        )
        self.now = 0.0
        self.first = handshake.start(0.0)
        if welcome:
            self.link.on_welcome(WELCOME, 0.0)

    def transfer(
        self, kind: str, *numbers: int, reply_codec: str = "raw", in_place: int = 0, **options: Any
    ) -> tuple[Any, list[Action]]:
        """Begin a transfer of some parameters, or of all."""
        arrays = [np.ones(p.size, np.float32) for p in self.spec.parameters]
        cargoes = plan(self.placement, frozenset(numbers) or None)
        source = Source(arrays=arrays, in_place=in_place)
        target = Target(arrays=arrays, codec=reply_codec, in_place=in_place)
        transfer = {
            "pull": lambda: transfers.PullTransfer(cargoes=cargoes, target=target, **options),
            "push": lambda: transfers.PushTransfer(cargoes=cargoes, source=source, **options),
            "push_pull": lambda: transfers.PushTransfer(cargoes=cargoes, source=source, target=target, **options),
            "load": lambda: transfers.LoadTransfer(cargoes=cargoes, source=source),
        }[kind]()
        self.link.enqueue(transfer, transfer.cargoes[0])
        actions = self.link.pump(self.now)
        self.link.validate()
        return transfer, actions

    def answer(self, message: Ack | Values) -> Transfer | None:
        transfer = self.link.on_answer(message, self.now)
        self.link.validate()
        return transfer

    def break_(self) -> list[Action]:
        """Let the connection break and come back; return what is sent before the next Welcome."""
        self.link.on_disconnected(self.now)
        self.link.validate()
        actions = self.link.on_connected(self.now)
        self.link.validate()
        return actions

    def welcome(self) -> list[Action]:
        actions = self.link.on_welcome(WELCOME, self.now)
        self.link.validate()
        return actions

    def probe(self) -> Pull:
        """Wait until the server is asked what it has."""
        assert self.link.probe.due is not None
        (question,) = sent(self.wait(self.link.probe.due), Pull)
        assert not question.parts
        return question

    def has(self, question: Pull) -> list[Action]:
        """The server answers a question; return what is sent thereupon."""
        assert self.answer(Values(question.request, "raw", (), (), ())) is None
        actions = self.link.pump(self.now)
        self.link.validate()
        return actions

    def wait(self, until: float) -> list[Action]:
        actions: list[Action] = []
        while (due := self.link.next_deadline()) is not None and due <= until:
            self.now = due
            actions += self.link.on_deadline(due)
            self.link.validate()
        self.now = until
        return actions


def large(megabytes: int) -> JobSpec:
    return JobSpec(
        parameters=(Parameter("w", (megabytes << 18,), "float32"),), optimizer=sgd(1.0).to_wire(), mode="async"
    )


def test_nothing_but_hello_is_sent_before_the_welcome() -> None:
    connection = Connection(welcome=False)
    _, actions = connection.transfer("push")
    assert actions == []
    hellos = sent(connection.first + connection.wait(10.0), Hello)
    assert 10 < len(hellos) < 20
    assert len(sent(connection.link.on_welcome(WELCOME, 10.0), Push)) == 3


def test_hellos_come_fast_at_first_and_then_once_a_second() -> None:
    connection = Connection(welcome=False)
    times = []
    while len(times) < 12:
        due = connection.link.next_deadline()
        assert due is not None
        times.append(due)
        connection.wait(due)
    gaps = np.diff([0.0, *times])
    assert gaps[0] == FIRST_RETRY_S
    assert (gaps[1:] >= gaps[:-1] - 1e-9).all()
    assert gaps[-1] == pytest.approx(SLOWEST_HELLO_S)


def test_the_window_bounds_the_bytes_in_flight_and_answers_make_room() -> None:
    connection = Connection(large(40), slice_nbytes=1 << 20)
    _, actions = connection.transfer("push")
    pushes = sent(actions, Push)
    assert len(pushes) == WINDOW_NBYTES >> 20
    connection.answer(Ack(pushes[0].request, [1], [0]))
    assert len(sent(connection.link.pump(0.0), Push)) == 1


def test_one_message_larger_than_the_window_goes_alone() -> None:
    connection = Connection(large(20), slice_nbytes=1 << 20)
    _, actions = connection.transfer("push", atomic=True)
    assert len(sent(actions, Push)) == 1
    _, actions = connection.transfer("pull")
    assert actions == []


def test_a_silent_server_is_asked_ever_more_rarely_and_nothing_is_sent_twice() -> None:
    connection = Connection()
    connection.transfer("push", atomic=True)
    times = []
    while len(times) < 7:
        connection.probe()
        times.append(connection.now)
    assert np.diff([0.0, *times]).tolist() == [min(PROBE_S * 2**i, SLOWEST_PROBE_S) for i in range(7)]
    assert connection.link.counts["retries"] == 0


def test_after_an_answer_a_silence_is_noticed_as_soon_as_the_first_one_was() -> None:
    connection = Connection()
    _, actions = connection.transfer("push")
    first = sent(actions, Push)[0]
    connection.wait(PROBE_S + 1.0)
    connection.answer(Ack(first.request, [1], [0]))
    times = [connection.now]
    while len(times) < 4:
        connection.probe()
        times.append(connection.now)
    assert np.diff(times).tolist() == [PROBE_S, 2 * PROBE_S, 4 * PROBE_S]


def test_answers_that_come_slowly_are_waited_for() -> None:
    connection = Connection()
    _, actions = connection.transfer("push")
    asked: list[Pull] = []
    for push in sent(actions, Push):
        asked += sent(connection.wait(connection.now + 10 * PROBE_S), Pull)
        connection.answer(Ack(push.request, [1], [0]))
    assert len(asked) > 3
    for question in asked:
        assert connection.has(question) == [], "a slow connection has delivered everything"
    assert connection.link.counts["retries"] == 0
    assert connection.link.next_deadline() is None


@for_each("kind", ["pull", "push", "load"])
def test_what_a_server_has_not_had_is_sent_again(kind: str) -> None:
    connection = Connection()
    _, actions = connection.transfer(kind)
    again = connection.has(connection.probe())
    assert [type(message) for message in messages(again)] == [type(message) for message in messages(actions)]
    assert [m.request for m in messages(again)] == [m.request for m in messages(actions)]
    assert connection.link.counts["retries"] == len(actions)


def test_values_that_a_push_asks_for_may_leave_after_the_answer_to_a_later_question() -> None:
    connection = Connection()
    _, actions = connection.transfer("push_pull")
    assert connection.has(connection.probe()) == []
    assert len(connection.has(connection.probe())) == len(actions)


def test_what_was_sent_after_a_question_is_not_in_its_answer() -> None:
    connection = Connection()
    _, actions = connection.transfer("push", 0)
    question = connection.probe()
    connection.transfer("push", 1)
    assert [m.request for m in messages(connection.has(question))] == [m.request for m in messages(actions)]


def test_a_question_is_answered_once() -> None:
    connection = Connection()
    connection.transfer("pull")
    question = connection.probe()
    assert connection.has(question)
    assert connection.has(question) == []


def test_a_server_that_answers_nothing_but_questions_is_asked_ever_more_rarely_too() -> None:
    connection = Connection()
    connection.transfer("pull")
    times = []
    while len(times) < 4:
        assert connection.has(connection.probe())
        times.append(connection.now)
    assert np.diff([0.0, *times]).tolist() == [PROBE_S * 2**i for i in range(4)]


@for_each("kind", ["pull", "push", "push_pull", "load"])
def test_over_a_new_connection_all_that_is_in_flight_is_sent_again_once_the_server_has_welcomed_us(kind: str) -> None:
    connection = Connection()
    _, actions = connection.transfer(kind)
    assert [type(message) for message in sent(connection.break_(), Hello)] == [Hello]
    assert connection.transfer(kind)[1] == [], "nothing leaves before"
    requests = [m.request for m in messages(connection.welcome())]
    assert requests[: len(actions)] == [m.request for m in messages(actions)]
    assert len(requests) == 2 * len(actions)
    assert connection.link.counts["retries"] == len(actions)
    assert connection.welcome() == [], "a second Welcome, to a Hello that was said again, changes nothing"


def test_over_a_broken_connection_no_question_is_asked_and_hellos_are_repeated_over_the_new_one() -> None:
    connection = Connection()
    connection.transfer("push")
    connection.link.on_disconnected(connection.now)
    assert {type(action) for action in connection.wait(100.0)} == {Look}, "nothing is sent"
    connection.break_()
    assert 10 < len(sent(connection.wait(110.0), Hello)) < 20
    assert connection.welcome()
    connection.probe()


def test_an_answer_that_came_over_the_old_connection_counts() -> None:
    connection = Connection()
    _, actions = connection.transfer("push")
    first, *others = sent(actions, Push)
    connection.link.on_disconnected(connection.now)
    connection.answer(Ack(first.request, [1], [0]))
    assert connection.link.next_deadline() == BROKEN_LOOK_S, "only to look why it does not come back"
    connection.break_()
    assert [m.request for m in messages(connection.welcome())] == [m.request for m in others]


def test_a_first_connection_says_hello_at_once() -> None:
    connection = Connection(welcome=False)
    connection.wait(10.0)
    assert len(sent(connection.link.on_connected(10.0), Hello)) == 1
    assert connection.link.next_deadline() == 10.0 + FIRST_RETRY_S


def test_a_lost_server_is_not_greeted_again() -> None:
    connection = Connection()
    connection.link.fail(PeerLostError(role="server", name="server 0", silent_s=1.0, advice=""))
    assert connection.break_() == []


def test_while_the_connection_is_broken_this_is_what_a_transfer_waits_for() -> None:
    connection = Connection()
    push, _ = connection.transfer("push")
    assert connection.link.waiting_for(push, 1.0).startswith("3 answers from server 0")
    connection.link.on_disconnected(connection.now)
    assert "connection to server 0" in connection.link.waiting_for(push, 1.0)


def test_what_was_given_up_is_never_sent_again_and_makes_room() -> None:
    connection = Connection(large(40), slice_nbytes=1 << 20)
    given_up, _ = connection.transfer("push")
    given_up.done = True
    _, actions = connection.transfer("pull")
    assert actions == [], "what was sent is still on its way"
    later = connection.has(connection.probe())
    assert sent(later, Push) == []
    assert len(sent(later, Pull)) == WINDOW_NBYTES >> 20


def test_a_pull_that_is_withdrawn_makes_room_at_once_and_its_server_is_told() -> None:
    connection = Connection(large(40), slice_nbytes=1 << 20)
    given_up, before = connection.transfer("pull")
    given_up.done = True
    connection.link.queue.drop(given_up)
    _, held = connection.transfer("push")
    assert held == [], "the window is full"
    actions = connection.link.withdraw(given_up, connection.now)
    connection.link.validate()
    assert [m.request for m in sent(actions, Withdraw)] == [m.request for m in sent(before, Pull)]
    assert len(sent(actions, Push)) == WINDOW_NBYTES >> 20
    late = [connection.answer(values(m.request)) for m in sent(before, Pull)]
    assert late == [None] * len(late)


def test_with_the_last_pull_withdrawn_nothing_is_due() -> None:
    connection = Connection()
    given_up, _ = connection.transfer("pull")
    given_up.done = True
    connection.link.withdraw(given_up, connection.now)
    connection.link.validate()
    assert connection.link.next_deadline() is None
    assert connection.link.withdraw(given_up, connection.now) == []


def test_over_a_broken_connection_a_server_is_not_told_and_nothing_is_sent_again() -> None:
    connection = Connection()
    given_up, _ = connection.transfer("pull")
    connection.break_()
    given_up.done = True
    assert connection.link.withdraw(given_up, connection.now) == []
    assert connection.welcome() == []


def test_what_was_given_up_is_not_sent_over_a_new_connection() -> None:
    connection = Connection()
    given_up, _ = connection.transfer("push")
    given_up.done = True
    connection.break_()
    assert connection.welcome() == []
    assert not connection.link.in_flight


def test_with_nothing_left_to_wait_for_nothing_is_due() -> None:
    connection = Connection()
    transfer, _ = connection.transfer("push")
    transfer.done = True
    assert connection.has(connection.probe()) == []
    assert connection.link.next_deadline() is None


def test_a_late_answer_to_what_was_given_up_lands_nowhere() -> None:
    connection = Connection()
    pull, actions = connection.transfer("pull")
    pull.done = True
    (request, *_) = sent(actions, Pull)
    assert connection.answer(Values(request.request, "raw", [1], [], [np.zeros(8, np.float32)])) is None
    assert all((array == 1.0).all() for array in pull.target.arrays if array is not None)


def test_a_late_answer_to_what_was_given_up_makes_room() -> None:
    connection = Connection(large(40), slice_nbytes=1 << 20)
    given_up, actions = connection.transfer("push")
    given_up.done = True
    assert connection.transfer("pull")[1] == []
    for push in sent(actions, Push)[:2]:
        assert connection.answer(Ack(push.request, [1], [0])) is None
    assert len(sent(connection.link.pump(0.0), Pull)) == 2


def test_a_second_answer_is_ignored() -> None:
    connection = Connection()
    push, actions = connection.transfer("push")
    request = sent(actions, Push)[0].request
    assert connection.answer(Ack(request, [1], [0])) is push
    assert connection.answer(Ack(request, [1], [0])) is None
    assert push.remaining == 2


@for_each("first", ["push", "pull"])
def test_a_push_is_never_so_old_that_the_ledger_has_forgotten_it(first: str) -> None:
    connection = Connection(job("a"))
    connection.transfer(first)
    _, actions = connection.transfer("push")
    oldest = sent(actions, Push)[0]
    for _ in range(PUSH_WINDOW + 10):
        for push in sent(actions, Push):
            if push is not oldest:
                connection.link.free(push.request, 0.0)
        _, actions = connection.transfer("push")
    assert actions == []
    assert connection.link.next_seq - oldest.seq <= PUSH_WINDOW


@for_each(
    "answer",
    [
        lambda request: Values(request, "raw", [1, 2], [], [np.zeros(8, np.float32)]),
        lambda request: Values(request, "raw", [1], [], [np.zeros(7, np.float32)]),
        lambda request: Ack(request, [1], [0]),
    ],
    ids=["versions", "payload", "no values"],
)
def test_an_answer_that_does_not_fit_leaves_its_transfer_to_fail_with_the_link(answer) -> None:  # type: ignore[no-untyped-def]
    connection = Connection(job("a"))
    pull, actions = connection.transfer("pull")
    with pytest.raises(ProtocolError):
        connection.answer(answer(sent(actions, Pull)[0].request))
    assert connection.link.fail(ProtocolError("no")) == [pull]


def test_a_lost_server_fails_what_was_sent_and_queued_and_takes_no_more() -> None:
    connection = Connection(large(40), slice_nbytes=1 << 20)
    one, _ = connection.transfer("push")
    two, _ = connection.transfer("pull")
    lost = PeerLostError(role="server", name="server 0", silent_s=1.0, advice="")
    assert connection.link.fail(lost) == [one, two]
    assert connection.link.next_deadline() is None
    _, actions = connection.transfer("pull")
    assert actions == []


def test_versions_that_were_read_are_what_a_push_is_measured_by() -> None:
    connection = Connection(job("a"))
    _, actions = connection.transfer("pull")
    connection.answer(Values(sent(actions, Pull)[0].request, "raw", [7], [], [np.zeros(8, np.float32)]))
    push, actions = connection.transfer("push")
    message = sent(actions, Push)[0]
    assert [version for _, version, _ in message.parts] == [7]
    connection.answer(Ack(message.request, [10], [2]))
    assert push.staleness == 2


def test_what_stays_in_place_goes_in_few_messages_beside_the_window() -> None:
    connection = Connection(large(megabytes=12), slice_nbytes=1 << 20)
    transfer, actions = connection.transfer("pull", in_place=5 << 20)
    pulls = sent(actions, Pull)
    assert [[part[0] for part in pull.parts] for pull in pulls] == [[*range(5)], [*range(5, 10)], [10, 11]]
    assert connection.link.in_flight.nbytes == 0
    for pull in pulls:
        values = [np.full(len(pull.parts) << 18, pull.request, np.float32)]
        connection.answer(Values(pull.request, "raw", [1] * len(pull.parts), (), values))
    assert transfer.remaining == 0
    assert [float(transfer.target.arrays[0][number << 18]) for number in range(12)] == [1] * 5 + [2] * 5 + [3] * 2  # type: ignore[index]


def test_what_is_encoded_does_not_stay_in_place() -> None:
    connection = Connection(large(megabytes=12), slice_nbytes=1 << 20)
    _, actions = connection.transfer("pull", in_place=5 << 20, reply_codec="bf16")
    assert {len(pull.parts) for pull in sent(actions, Pull)} == {1}
    assert connection.link.in_flight.nbytes == 12 << 20


@for_each("codec, keeps", [("bf16", False), ("topk:fraction=0.5", True)])
def test_only_what_a_codec_leaves_out_is_kept(codec: str, keeps: bool) -> None:
    kept: list[Any] = []

    def compress(codec: Any, parts: Any, residuals: Any, seed: int) -> list[Any]:
        kept.append(residuals)
        return CODING.compress(codec, parts, residuals, seed)

    spec = large(megabytes=1)
    where = placement(spec, 1, 1 << 20)
    link = Link(
        ShardServer(title="server 0", handshake=Handshake(hello("worker"), server_peer(0), ""), proof=b"", epoch=1),
        1,
        LinkCommons(coding=Coding(compress=compress)),
    )
    link.on_welcome(WELCOME, 0.0)
    push = transfers.PushTransfer(
        cargoes=plan(where, None), source=Source(arrays=[np.ones(1 << 18, np.float32)], codec=codec)
    )
    link.enqueue(push, push.cargoes[0])
    assert [message.codec for message in sent(link.pump(0.0), Push)] == [codec]
    assert [residuals is not None for residuals in kept] == [keeps]


def test_a_cargo_larger_than_a_message_in_place_has_one_of_its_own() -> None:
    connection = Connection(large(megabytes=4), slice_nbytes=1 << 20)
    _, actions = connection.transfer("pull", in_place=1)
    assert [len(pull.parts) for pull in sent(actions, Pull)] == [1] * 4


# --- what overtakes what ------------------------------------------------------------------------


def messages(actions: list[Action]) -> list[Push | Pull | Load]:
    """Return the requests among what a link says."""
    return [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, Push | Pull | Load)]


def values(request: int, version: int = 1) -> Values:
    return Values(request, "raw", [version], [], [np.full(8, version, np.float32)])


def ack(request: int) -> Ack:
    return Ack(request, [1], [0])


def lost(connection: Connection, *kinds_and_numbers: tuple[str, int]) -> tuple[list[Transfer], list[int]]:
    """Begin transfers of one parameter each; return them and their requests."""
    begun = [connection.transfer(kind, number) for kind, number in kinds_and_numbers]
    return [transfer for transfer, _ in begun], [m.request for _, actions in begun for m in messages(actions)]


def test_a_pull_does_not_wait_behind_the_pushes_of_other_slices() -> None:
    connection = Connection(large(40), slice_nbytes=1 << 20)
    connection.transfer("push")
    assert len(connection.link.in_flight) == WINDOW_NBYTES >> 20
    spec = connection.spec
    first = connection.placement.slices[0][0]
    pull = transfers.PullTransfer(
        cargoes=plan(connection.placement), target=Target(arrays=[np.zeros(spec.parameters[0].size)])
    )
    connection.link.enqueue(pull, tuple(c for c in pull.cargoes[0] if c.slice.index in (first.index, 30)))
    leaves: list[Push | Pull] = []
    while connection.link.in_flight:
        number = next(iter(connection.link.in_flight))
        connection.link.free(number, 0.0)
        leaves += messages(connection.link.pump(0.0))
        connection.link.validate()
    order = [(type(m).__name__, m.parts[0][0]) for m in leaves]
    assert order[0] == ("Pull", 0), "its push has left"
    assert order.index(("Pull", 30)) == order.index(("Push", 30)) + 1, "it waits for the push of its slice, no longer"
    assert [i for name, i in order if name == "Push"] == list(range(WINDOW_NBYTES >> 20, 40))


def test_a_push_that_was_lost_is_sent_again_as_soon_as_a_later_request_is_answered() -> None:
    connection = Connection()
    (push, pull), (first, second) = lost(connection, ("push", 0), ("pull", 1))
    assert connection.answer(values(second)) is pull
    (again,) = messages(connection.link.pump(0.0))
    assert again.request == first
    assert connection.answer(ack(first)) is push
    assert connection.link.counts["retries"] == 1


@for_each("kind", ["push", "push_pull"])
def test_a_pull_that_was_answered_without_an_earlier_push_is_asked_again_behind_it(kind: str) -> None:
    connection = Connection()
    (push, pull), (first, second) = lost(connection, (kind, 0), ("pull", 0))
    assert connection.answer(values(second, 5)) is None
    assert pull.target.arrays[0] is not None
    assert (pull.target.arrays[0] == 1.0).all(), "the values without the push have landed"
    assert [m.request for m in messages(connection.link.pump(0.0))] == [first, second]
    assert connection.answer(ack(first) if kind == "push" else values(first, 6)) is push
    assert connection.answer(values(second, 6)) is pull
    assert (pull.target.arrays[0] == 6.0).all()


def test_a_pull_is_asked_again_behind_its_push_whatever_else_was_pushed_since() -> None:
    connection = Connection()
    _, (first, other, last) = lost(connection, ("push", 0), ("push", 1), ("pull", 0))
    assert connection.answer(values(last)) is None
    assert [m.request for m in messages(connection.link.pump(0.0))] == [first, other, last]


def test_what_was_sent_again_is_not_taken_for_lost_by_answers_to_what_was_sent_before() -> None:
    connection = Connection()
    _, (first, second, third) = lost(connection, ("push", 0), ("push", 1), ("push", 2))
    connection.answer(ack(second))
    assert [m.request for m in sent(connection.link.pump(0.0), Push)] == [first]
    connection.answer(ack(third))
    assert connection.link.pump(0.0) == []


@for_each("kind", ["pull", "push_pull"])
def test_values_may_come_after_what_was_asked_later(kind: str) -> None:
    connection = Connection()
    _, (_, second) = lost(connection, (kind, 0), ("push", 1))
    connection.answer(ack(second))
    assert connection.link.pump(0.0) == []


def test_a_push_that_was_given_up_holds_no_pull_back() -> None:
    connection = Connection()
    (push, pull), (_, second) = lost(connection, ("push", 0), ("pull", 0))
    push.done = True
    assert connection.answer(values(second)) is pull
    assert connection.link.pump(0.0) == []


# --- when a silent server is asked what it has ---------------------------------------------------


def test_an_answer_says_how_much_was_sent_before_its_question_and_only_once() -> None:
    probe = SilenceProbe()
    probe.num_sent = 3
    probe.ask(0.0, number=7)
    probe.num_sent = 5
    probe.ask(1.0, number=9)
    assert [probe.answered(number) for number in (9, 8, 7, 9, 7)] == [5, 0, 3, 0, 0]


def test_as_many_questions_are_remembered_as_can_be_on_their_way() -> None:
    probe = SilenceProbe()
    probe.num_sent = 1
    for number in range(MAX_OUT + 1):
        probe.ask(0.0, number)
    assert [probe.answered(number) for number in (0, 1, MAX_OUT)] == [0, 1, 1]


# --- requests that wait to be sent again ---------------------------------------------------------


def test_what_is_refused_again_and_again_waits_ever_longer_until_it_is_given_up() -> None:
    resends, refused, now, times = Resends(), Delay(), 5.0, [5.0]
    while (at := resends.refused(refused, now)) is not None:
        now = at
        times.append(at)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(SLOWEST_RETRY_S)
    assert SHORT_S <= now - 5.0 < SHORT_S + SLOWEST_RETRY_S
