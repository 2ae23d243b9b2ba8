"""The worker's machine: operations in, messages out, and an answer to every operation by its deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.machines import errors, exits_of, identity, job, logged, placement, resolved, sent, zeros
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connect,
    Connected,
    Disconnected,
    Log,
    Received,
    Send,
    Stop,
    Undecodable,
    server_peer,
)
from zmqps.core.protocol.messages import (
    MAGIC,
    PROTOCOL_VERSION,
    Ack,
    Arrive,
    Error,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Job,
    Leave,
    Left,
    Load,
    Lost,
    Pull,
    Push,
    Released,
    Shutdown,
    Status,
    Values,
    Waiting,
    Welcome,
    Withdraw,
)
from zmqps.core.protocol.messages import Enter as EnterMessage
from zmqps.core.worker.extensions import ExtendedSession
from zmqps.core.worker.operations import AskStatus, Cancelled, EnterBarrier, Exchange, Finish, Join, Operation, StartJob
from zmqps.core.worker.session import FAREWELL_S
from zmqps.core.worker.transfer import PullTransfer as Pulling
from zmqps.core.worker.transfer import PushTransfer as Pushing
from zmqps.core.worker.transfer import Source, Target, plan
from zmqps.errors import (
    ClosedError,
    CoordinatorRestartedError,
    DeadlineError,
    EvictedError,
    JobMismatchError,
    NonFiniteGradientError,
    NotJoinedError,
    PeerLostError,
    ProtocolError,
    ShutdownError,
)

S0, S1 = server_peer(0), server_peer(1)
PROOF = b"p" * 16
WELCOME = Welcome(PROTOCOL_VERSION, b"i" * 16, "c", 3, 1.0, 10.0, 4, 2, proof=PROOF)


class Session:
    """A session and the clock, with its invariants checked after every event."""

    def __init__(self, spec: JobSpec | None = None, shards: int = 2) -> None:
        self.machine = ExtendedSession(identity("worker", "w"), "tcp://coordinator:1")
        self.now = 0.0
        self.spec = spec or job(*"abcd")
        self.placement = placement(self.spec, shards)
        self.actions = self.machine.start(0.0)

    def handle(self, event: Any) -> list[Action]:
        actions = self.machine.handle(event, self.now)
        self.machine.validate()
        return actions

    def get(self, message: Any, peer: bytes = COORDINATOR) -> list[Action]:
        return self.handle(Received(peer, message))

    def ask(self, operation: Operation, timeout: float = 5.0) -> list[Action]:
        operation.deadline = self.now + timeout
        return self.handle(operation)

    def wait(self, until: float, *, hear: bool = False) -> list[Action]:
        actions: list[Action] = []
        while (due := self.machine.next_deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            if hear:
                actions += self.get(Waiting(0, ""))
            actions += self.machine.on_deadline(self.now)
            self.machine.validate()
        self.now = until
        return actions

    def job(self, request: int, load: int = 0, epoch: int = 1, names: str = "01") -> Job:
        keys = {"ticket": (b"t" * 16).hex(), "proof": PROOF.hex()}
        servers = [
            {"name": f"s{n}", "endpoint": f"tcp://s{n}:1", "rank": rank, "epoch": epoch, **keys}
            for rank, n in enumerate(names)
        ]
        where = {**self.placement.to_wire(), "servers": servers}
        return Job(request, epoch, self.spec.to_wire(), where, load, 0, 2, "", 3)

    def attach(self) -> None:
        """Join, and take a job that runs already."""
        self.get(WELCOME)
        init = StartJob(0.0, job=self.spec, values=zeros(self.spec))
        self.ask(init)
        assert resolved(self.get(self.job(init.request)))[0][0] is init
        for peer in (S0, S1):
            self.get(WELCOME, peer)

    def transfer(
        self, kind: str, value: float = 1.0, parameters: frozenset[int] | None = None, *, whole: bool = False
    ) -> Exchange:
        arrays = [np.full(p.size, value, np.float32) for p in self.spec.parameters]
        cargoes = plan(self.placement, parameters)
        out = [np.zeros(p.size, np.float32) for p in self.spec.parameters]
        return Exchange(
            push=Pushing(cargoes=cargoes, source=Source(arrays=arrays), whole=whole) if kind != "pull" else None,
            pull=Pulling(cargoes=cargoes, target=Target(arrays=out)) if kind != "push" else None,
        )

    def answer(self, actions: list[Action], peer: bytes) -> list[Action]:
        """Answer everything that went to a server."""
        done = []
        for message in [*sent(actions, Push, peer), *sent(actions, Load, peer)]:
            done += self.get(Ack(message.request, [1] * len(message.parts), [0] * len(message.parts)), peer)
        for pull in sent(actions, Pull, peer):
            payload = [np.zeros(8, np.float32)] * len(pull.parts)
            done += self.get(Values(pull.request, "raw", [1] * len(pull.parts), [], payload), peer)
        return done


class Attached(Session):
    """A worker of a job on two servers that know it, whose placement says more than where its shards are."""

    def __init__(self, placement: dict[str, Any], **options: Any) -> None:
        super().__init__(job(*"abcd", **options))
        self.get(WELCOME)
        init = StartJob(0.0, job=self.spec, values=[np.zeros(p.size, np.float32) for p in self.spec.parameters])
        self.ask(init)
        told = self.job(init.request)
        told.placement.update(placement)
        self.get(told)
        for peer in (S0, S1):
            self.get(WELCOME, peer)


def error(cls: type, request: int = 0, **facts: Any) -> Error:
    e = cls(**(facts or {"reason": "because"}))
    return Error(request, e.code, str(e), e.facts())


# --- the job ------------------------------------------------------------------------------------


def test_the_note_of_a_job_is_a_warning_and_its_number_of_workers_counts() -> None:
    session = Session()
    session.get(WELCOME)
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init)
    assert logged(session.get(session.job(init.request, load=1))) == ""
    actions = session.get(replace(session.job(init.request), num_workers=5, note="the job 'x' goes on", rank=4))
    assert [(a.level, a.text) for a in actions if isinstance(a, Log)] == [("warning", "the job 'x' goes on")]
    assert resolved(actions)[0][0] is init
    assert (session.machine.member.cluster.num_workers, session.machine.member.rank) == (5, 4)


def test_a_job_whose_chief_went_back_to_the_optimizers_own_numbers_takes_those_away_that_were_heard_of() -> None:
    session = Session()
    session.get(WELCOME)
    session.get(HeartbeatAck(2, 0, (1.0, 1.0, 0.5)))
    assert session.machine.member.cluster.terms == (1.0, 1.0, 0.5)
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init)
    session.get(session.job(init.request))
    assert session.machine.member.cluster.terms == ()


# --- joining ------------------------------------------------------------------------------------


def test_connect_waits_for_the_coordinators_welcome() -> None:
    session = Session()
    assert [a.endpoint for a in session.actions if isinstance(a, Connect)] == ["tcp://coordinator:1"]
    assert [m.magic for m in sent(session.actions, Hello)] == [MAGIC]
    join = Join(0.0)
    assert session.ask(join) == []
    assert resolved(session.get(WELCOME)) == [(join, None)]
    assert session.machine.member.rank == 3


def test_a_connect_that_nobody_answers_says_whom_it_waited_for() -> None:
    session = Session()
    join = Join(0.0)
    session.ask(join, timeout=2.0)
    ((operation, value),) = resolved(session.wait(2.0))
    assert operation is join
    assert isinstance(value, DeadlineError)
    assert (value.operation, value.seconds) == ("connect", 2.0)
    assert "the coordinator at tcp://coordinator:1" in value.waiting_for


def test_a_refused_hello_fails_the_connect_with_its_reason() -> None:
    session = Session()
    session.ask(Join(0.0))
    assert isinstance(resolved(session.get(error(EvictedError)))[0][1], EvictedError)


# --- the job ------------------------------------------------------------------------------------


def test_an_init_uploads_values_in_the_jobs_order_whatever_its_own() -> None:
    session = Session(spec=job("a", "b"))
    session.get(WELCOME)
    theirs = job("b", "a")
    values = [np.full(8, 2.0, np.float32), np.full(8, 1.0, np.float32)]
    init = StartJob(0.0, job=theirs, values=values)
    session.ask(init)
    session.get(session.job(init.request, load=1))
    loads = [m for peer in (S0, S1) for m in sent(session.get(WELCOME, peer), Load)]
    assert [np.frombuffer(bytes(m.payload[0]), np.float32).tolist() for m in loads] == [[1.0] * 8, [2.0] * 8]


def test_an_init_that_uploads_is_done_when_the_coordinator_says_so() -> None:
    session = Session()
    session.get(WELCOME)
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init)
    session.get(session.job(init.request, load=1))
    for peer in (S0, S1):
        assert resolved(session.answer(session.get(WELCOME, peer), peer)) == []
    ((operation, value),) = resolved(session.get(session.job(init.request)))
    assert operation is init
    assert value.job == session.spec


def test_an_init_that_fails_is_withdrawn_and_the_next_one_works() -> None:
    session = Session()
    session.get(WELCOME)
    first = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(first)
    facts = {"what": "x", "ours": "1", "theirs": "2", "owner": "w", "advice": "end it"}
    actions = session.get(error(JobMismatchError, first.request, **facts))
    assert isinstance(resolved(actions)[0][1], JobMismatchError)
    assert [m.request for m in sent(actions, Withdraw)] == [first.request]
    session.attach()


def test_an_init_after_a_server_was_lost_during_the_upload_uses_the_new_placement() -> None:
    session = Session()
    session.get(WELCOME)
    first = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(first)
    session.get(session.job(first.request, load=1))
    before = sent(session.get(WELCOME, S0), Load)
    assert isinstance(resolved(session.get(Lost("server", 1, "s1", b"x" * 16, 10.0)))[0][1], PeerLostError)
    session.spec = job(*"efgh")
    second = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(second)
    actions = session.get(session.job(second.request, load=1, epoch=2, names="02"))
    assert [(a.peer, a.endpoint) for a in actions if isinstance(a, Connect)] == [(server_peer(2), "tcp://s2:1")]
    assert len(sent(actions, Hello, S0)) == 1, "the connection to s0 is open already"
    loads = sent(session.get(WELCOME, S0), Load)
    assert {m.epoch for m in loads} == {2}
    assert not {m.request for m in before} & {m.request for m in loads}
    assert session.get(Ack(1, [1], []), S0) == [], "an answer to the first upload is not taken for one to the second"
    assert session.machine.attached is not None
    assert session.machine.attached.job == session.spec


@pytest.mark.parametrize("names", ["", "0", "012"])
def test_a_job_that_does_not_name_one_server_for_each_shard_fails_the_init(names: str) -> None:
    session = Session()
    session.get(WELCOME)
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init)
    ((operation, value),) = resolved(session.get(session.job(init.request, names=names)))
    assert operation is init
    assert isinstance(value, ProtocolError)
    assert session.machine.attached is None


def test_an_upload_to_a_server_that_refuses_us_fails_the_init() -> None:
    session = Session()
    session.attach()
    session.get(error(EvictedError), S0)
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init)
    assert [o for o, _ in resolved(session.get(session.job(init.request, load=1)))] == [init]


# --- transfers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_a_transfer_is_done_when_every_shard_has_answered(kind: str) -> None:
    session = Session()
    session.attach()
    transfer = session.transfer(kind)
    actions = session.ask(transfer)
    assert resolved(session.answer(actions, S0)) == []
    assert resolved(session.answer(actions, S1)) == [(transfer, None)]
    assert getattr(session.machine.statistics(), {"pull": "pulls", "push": "pushes"}[kind]) == 1


def test_a_timeout_says_which_server_did_not_answer() -> None:
    session = Session()
    session.attach()
    session.answer(session.ask(session.transfer("push"), timeout=2.0), S0)
    ((_, value),) = resolved(session.wait(2.0, hear=True))
    assert isinstance(value, DeadlineError)
    assert value.waiting_for == "2 answers from server 1 (s1, tcp://s1:1), last heard from 2.0 s ago"


def test_what_was_given_up_is_never_sent_again_and_what_was_not_is() -> None:
    session = Session()
    session.attach()
    session.ask(session.transfer("push"), timeout=2.0)
    session.ask(session.transfer("pull"), timeout=30.0)
    asked = session.wait(20.0, hear=True)
    assert sent(asked, Push) == []
    assert session.machine.statistics().retries == 0
    again: list[Action] = []
    for server in (S0, S1):  # has had all that was sent before
        question = sent(asked, Pull, server)[-1]
        assert not question.parts
        again += session.get(Values(question.request, "raw", (), (), ()), server)
    assert sent(again, Push) == []
    assert len(sent(again, Pull)) >= 4
    assert session.machine.statistics().retries == len(sent(again, Pull))


def test_after_a_connection_broke_what_it_may_have_lost_is_said_again() -> None:
    session = Session()
    session.attach()
    actions = session.ask(session.transfer("push"), timeout=60.0)
    session.handle(Disconnected(S0))
    assert sent(session.wait(20.0, hear=True), Push) == []
    assert sent(session.handle(Connected(S0)), Hello, S0)
    again = sent(session.get(WELCOME, S0), Push, S0)
    assert [push.seq for push in again] == [push.seq for push in sent(actions, Push, S0)]
    assert session.handle(Connected(b"server-7")) == []
    assert session.handle(Disconnected(b"server-7")) == []


def test_over_a_new_connection_to_the_coordinator_a_sign_of_life_and_all_questions_are_sent_at_once() -> None:
    session = Session()
    session.attach()
    enter = EnterBarrier(0.0, barrier="b")
    session.ask(enter)
    assert session.handle(Disconnected(COORDINATOR)) == []
    actions = session.handle(Connected(COORDINATOR))
    assert len(sent(actions, Heartbeat, COORDINATOR)) == 1
    assert [message.barrier for message in sent(actions, EnterMessage, COORDINATOR)] == ["b"]


def test_a_worker_that_has_not_joined_says_hello_as_soon_as_there_is_a_connection() -> None:
    session = Session()
    actions = session.handle(Connected(COORDINATOR))
    assert [type(action.message) for action in actions if isinstance(action, Send)] == [Hello]


def test_a_lost_server_fails_its_own_operations_only() -> None:
    session = Session()
    session.attach()
    both, rest = session.transfer("pull"), session.transfer("pull")
    assert rest.pull is not None
    rest.pull.cargoes = (rest.pull.cargoes[0], ())
    session.ask(both)
    actions = session.ask(rest)
    ((operation, value),) = resolved(session.get(Lost("server", 1, "s1", b"x" * 16, 10.0)))
    assert operation is both
    assert isinstance(value, PeerLostError)
    assert str(value).startswith("lost server 1 (s1, tcp://s1:1): last sign of life 10.0 s ago")
    assert resolved(session.answer(actions, S0)) == [(rest, None)]
    assert isinstance(resolved(session.ask(session.transfer("push")))[0][1], PeerLostError)


def test_the_loss_of_a_server_fails_all_that_is_under_way_to_it() -> None:
    session = Session()
    session.attach()
    pushes = [session.transfer("push") for _ in range(3)]
    for push in pushes:
        session.ask(push)
    failed = resolved(session.get(Lost("server", 1, "s1", b"x" * 16, 10.0)))
    assert [operation for operation, _ in failed] == pushes
    assert all(isinstance(value, PeerLostError) for _, value in failed)


def test_the_loss_of_a_server_that_holds_nothing_of_the_job_fails_nothing() -> None:
    session = Session()
    session.attach()
    pull = session.transfer("pull")
    requests = session.ask(pull)
    assert session.get(Lost("server", 2, "s2", b"x" * 16, 10.0)) == []
    session.answer(requests, S0)
    assert resolved(session.answer(requests, S1)) == [(pull, None)]


def test_a_gradient_with_nan_is_refused_before_anything_is_sent() -> None:
    session = Session()
    session.attach()
    actions = session.ask(session.transfer("push", value=float("nan")))
    assert sent(actions, Push) == []
    ((_, value),) = resolved(actions)
    assert isinstance(value, NonFiniteGradientError)
    assert value.worker == "worker 3 (w, host, pid 7)"
    assert session.machine.statistics().nonfinite == 1


def test_an_answer_that_does_not_fit_fails_the_operation_at_once() -> None:
    session = Session()
    session.attach()
    actions = session.ask(session.transfer("pull"))
    pull = sent(actions, Pull, S0)[0]
    answers = session.get(Values(pull.request, "raw", [1], [], [np.zeros(3, np.float32)]), S0)
    assert isinstance(resolved(answers)[0][1], ProtocolError)


def test_a_server_that_refuses_a_request_fails_its_operation() -> None:
    session = Session()
    session.attach()
    push = sent(session.ask(session.transfer("push")), Push, S0)[0]
    assert isinstance(resolved(session.get(error(NotJoinedError, push.request), S0))[0][1], NotJoinedError)


def test_what_a_peer_sends_unasked_changes_nothing() -> None:
    session = Session()
    session.attach()
    assert session.get(Ack(99, [1], [0]), S0) == []
    assert session.get(Released(99, 0)) == []
    assert session.get(Released(99, 0), S0) == []
    assert session.get(Ack(1, [1], [0]), b"stranger") == []
    assert "dropped" in logged(session.handle(Undecodable(S0, ProtocolError("no"))))


# --- the coordinator's services -----------------------------------------------------------------


def test_a_barrier_that_times_out_says_whom_it_waited_for_and_withdraws() -> None:
    session = Session()
    session.attach()
    enter = EnterBarrier(0.0, barrier="epoch")
    session.ask(enter, timeout=3.0)
    session.get(Waiting(enter.request, "worker 1 (w1, h, pid 2)"))
    actions = session.wait(3.0, hear=True)
    ((_, value),) = resolved(actions)
    assert isinstance(value, DeadlineError)
    assert (value.operation, value.waiting_for) == ("barrier 'epoch'", "worker 1 (w1, h, pid 2)")
    assert [m.request for m in sent(actions, Withdraw)] == [enter.request]


def test_barrier_and_status_are_answered() -> None:
    session = Session()
    session.attach()
    enter, status = EnterBarrier(0.0, barrier="x"), AskStatus(0.0)
    session.ask(enter)
    session.ask(status)
    assert resolved(session.get(Status(status.request, {"a": 1}))) == [(status, {"a": 1})]
    assert resolved(session.get(Released(enter.request, 0))) == [(enter, None)]


def test_an_answer_of_another_kind_than_was_asked_for_answers_nothing() -> None:
    session = Session()
    session.attach()
    enter, status = EnterBarrier(0.0, barrier="x"), AskStatus(0.0)
    session.ask(enter)
    session.ask(status)
    assert session.get(Released(status.request, 0)) == []
    assert session.get(Status(enter.request, {"a": 1})) == []
    assert session.get(session.job(enter.request)) == []
    assert resolved(session.get(Status(status.request, {"a": 1}))) == [(status, {"a": 1})]
    assert resolved(session.get(Released(enter.request, 0))) == [(enter, None)]


def test_a_silent_coordinator_fails_what_waits_for_it_while_transfers_go_on() -> None:
    session = Session()
    session.attach()
    enter, push = EnterBarrier(0.0, barrier="x"), session.transfer("push")
    session.ask(enter, timeout=60.0)
    requests = session.ask(push, timeout=60.0)
    actions = session.wait(12.0)
    assert len(sent(actions, Heartbeat)) >= 10
    ((operation, value),) = resolved(actions)
    assert operation is enter
    assert isinstance(value, PeerLostError)
    assert str(value).startswith("lost the coordinator at tcp://coordinator:1: last sign of life")
    session.answer(requests, S0)
    assert resolved(session.answer(requests, S1)) == [(push, None)]
    assert isinstance(resolved(session.ask(EnterBarrier(0.0, barrier="y")))[0][1], PeerLostError)


def synchronous() -> Session:
    session = Session(replace(job(*"abcd"), staleness=0))
    session.attach()
    return session


def test_a_pull_that_waits_for_a_commit_fails_with_a_silent_coordinator_and_not_at_its_deadline() -> None:
    session = synchronous()
    pull = session.transfer("pull")
    session.ask(pull, timeout=60.0)
    ((operation, value),) = resolved(session.wait(12.0))
    assert operation is pull
    assert isinstance(value, PeerLostError)
    assert value.role == "coordinator"


def test_a_pull_of_values_that_are_there_goes_on_without_a_coordinator() -> None:
    session = synchronous()
    session.wait(9.5)  # silent for long, and not yet lost
    pull = session.transfer("pull")
    requests = session.ask(pull, timeout=60.0)
    assert resolved(session.wait(12.0)) == []
    session.answer(requests, S0)
    assert [operation for operation, _ in resolved(session.answer(requests, S1))] == [pull]


def test_a_pull_that_no_coordinator_will_serve_ends_at_its_deadline_with_the_cause() -> None:
    session = synchronous()
    session.wait(12.0)
    pull = session.transfer("pull")
    session.ask(pull, timeout=5.0)
    ((operation, value),) = resolved(session.wait(18.0))
    assert operation is pull
    assert isinstance(value, PeerLostError)


def test_a_pull_of_what_only_a_step_brings_fails_at_once_without_a_coordinator() -> None:
    session = synchronous()
    session.wait(12.0)
    pull = session.transfer("pull")
    assert pull.pull is not None
    pull.pull.version = 1
    ((operation, value),) = resolved(session.ask(pull, timeout=60.0))
    assert operation is pull
    assert isinstance(value, PeerLostError)
    assert value.role == "coordinator"


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("kind", ["push", "pull"])
@pytest.mark.parametrize("begun", [9.5, 12.0])
def test_what_servers_do_not_answer_without_a_coordinator_fails_long_before_its_deadline(
    kind: str, mode: str, begun: float
) -> None:
    session = Session(replace(job(*"abcd"), staleness=0 if mode == "sync" else None))
    session.attach()
    session.wait(begun)
    operation = session.transfer(kind)
    session.ask(operation, timeout=600.0)
    assert resolved(session.wait(14.5)) == []
    ((failed, value),) = resolved(session.wait(17.0))
    assert failed is operation
    assert isinstance(value, PeerLostError)
    assert value.name == "the coordinator at tcp://coordinator:1"


def test_what_waits_for_a_coordinator_that_was_started_again_is_told_so() -> None:
    session = Session()
    session.attach()
    enter, push, late = EnterBarrier(0.0, barrier="b"), session.transfer("push"), EnterBarrier(0.0, barrier="c")
    session.ask(enter)
    requests = session.ask(push, timeout=60.0)
    told = resolved(session.get(Error.of(enter.request, NotJoinedError("Enter before Hello"))))
    assert [operation for operation, _ in told] == [enter]
    assert session.get(Error.of(0, NotJoinedError("Heartbeat before Hello"))) == []
    told += resolved(session.ask(late))
    for _, error in told:
        assert isinstance(error, CoordinatorRestartedError)
        assert "is a new one" in str(error)
        assert "connect again, and init with values that you have saved" in str(error)
    session.answer(requests, S0)
    assert resolved(session.answer(requests, S1)) == [(push, None)], "servers may know no more than it does"


def test_who_has_given_up_a_coordinator_still_hears_that_there_is_another_one() -> None:
    session = Session()
    session.attach()
    told = logged(session.wait(12.0))
    assert "its servers end when they miss it, too, and the values they hold are gone then" in told
    assert session.get(Error.of(0, NotJoinedError("Heartbeat before Hello"))) == []
    ((_, error),) = resolved(session.ask(EnterBarrier(0.0, barrier="b")))
    assert isinstance(error, CoordinatorRestartedError)


def test_a_server_that_has_ended_with_the_coordinator_fails_what_needs_it() -> None:
    session = Session()
    session.attach()
    pull = session.transfer("pull")
    session.ask(pull, timeout=600.0)
    lost = PeerLostError(role="coordinator", name="the coordinator at x", silent_s=10.0, advice="server 1 has ended")
    ((operation, value),) = resolved(session.get(Error.of(0, lost), S1))
    assert (operation, str(value)) == (pull, str(lost))
    assert isinstance(resolved(session.ask(session.transfer("push")))[0][1], PeerLostError)


@pytest.mark.parametrize(("until", "text"), [(2.0, ""), (6.0, "; the coordinator has been silent for 6.0 s")])
def test_a_deadline_that_comes_before_the_loss_tells_of_the_silence(until: float, text: str) -> None:
    session = Session()
    session.attach()
    enter = EnterBarrier(0.0, barrier="x")
    session.ask(enter, timeout=until)
    ((_, value),) = resolved(session.wait(until))
    assert isinstance(value, DeadlineError)
    assert value.waiting_for == f"the coordinator's answer{text}"


def test_a_coordinator_that_is_heard_is_not_called_silent() -> None:
    session = Session()
    session.attach()
    session.ask(EnterBarrier(0.0, barrier="x"), timeout=8.0)
    ((_, value),) = resolved(session.wait(8.0, hear=True))
    assert isinstance(value, DeadlineError)
    assert "silent" not in value.waiting_for


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 3.0), st.booleans()), min_size=1, max_size=12))
def test_each_of_many_operations_ends_at_its_own_deadline_unless_it_was_given_up_before(
    asked: list[tuple[float, bool]],
) -> None:
    session = Session()
    session.attach()
    deadlines: dict[Operation, float] = {}
    for timeout, given_up in asked:
        session.ask(pull := session.transfer("pull"), timeout)
        if given_up:
            session.handle(Cancelled(pull))
        else:
            deadlines[pull] = session.now + timeout
    ended: dict[Operation, float] = {}
    while (due := session.machine.next_deadline()) is not None and due < 5.0:
        ended |= {operation: due for operation, _ in resolved(session.wait(due))}
    assert ended == deadlines


# --- the end ------------------------------------------------------------------------------------


def test_finish_waits_for_transfers_then_says_goodbye_to_everybody() -> None:
    session = Session()
    session.attach()
    requests = session.ask(session.transfer("push"))
    finish = Finish(0.0)
    assert session.ask(finish) == []
    assert isinstance(resolved(session.ask(session.transfer("pull")))[0][1], ClosedError)
    session.answer(requests, S0)
    actions = session.answer(requests, S1)
    assert {a.peer for a in actions if isinstance(getattr(a, "message", None), Leave)} == {S0, S1, COORDINATOR}
    assert resolved(session.get(Left())) == [(finish, None)]
    assert session.machine.next_deadline() is None or resolved(session.wait(100.0)) == []


def test_a_goodbye_that_nobody_answers_is_said_all_the_same() -> None:
    session = Session()
    session.attach()
    finish = Finish(0.0)
    session.ask(finish, timeout=60.0)
    assert resolved(session.wait(FAREWELL_S - 0.1)) == []
    assert resolved(session.wait(FAREWELL_S + 0.1)) == [(finish, None)]


def test_a_finish_that_takes_too_long_says_whom_it_waits_for() -> None:
    session = Session()
    session.attach()
    finish = Finish(0.0)
    session.ask(finish, timeout=FAREWELL_S / 2)
    ((operation, value),) = resolved(session.wait(FAREWELL_S))
    assert operation is finish
    assert (value.operation, value.waiting_for) == ("finish", "the coordinator at tcp://coordinator:1")


def test_a_pull_that_is_cancelled_is_withdrawn_and_its_answer_lands_nowhere() -> None:
    session = Session()
    session.attach()
    pull, finish = session.transfer("pull"), Finish(0.0)
    assert pull.pull is not None
    pull.pull.version = 100  # parked at the servers
    asked = session.ask(pull)
    assert session.machine.statistics().in_flight_bytes > 0
    assert session.ask(finish) == []
    actions = session.handle(Cancelled(pull))
    assert resolved(actions) == [(pull, Cancelled(pull))]
    for peer in (S0, S1):
        assert [m.request for m in sent(actions, Withdraw, peer)] == [m.request for m in sent(asked, Pull, peer)] != []
    assert len(sent(actions, Leave)) == 3, "at once"
    assert session.machine.statistics().in_flight_bytes == 0
    session.answer(asked, S0)
    session.answer(asked, S1)
    assert session.machine.statistics().in_flight_bytes == 0
    assert all((array == 0.0).all() for array in pull.pull.target.arrays if array is not None)
    assert session.handle(Cancelled(pull)) == [], "once"


def test_a_pull_that_is_cancelled_before_it_was_sent_never_is() -> None:
    session = Session()
    session.get(WELCOME)
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init)
    session.get(session.job(init.request))
    first, second = session.transfer("pull"), session.transfer("pull")
    session.ask(first)
    session.ask(second)
    assert resolved(session.handle(Cancelled(first))) == [(first, Cancelled(first))]
    asked = [*session.get(WELCOME, S0), *session.get(WELCOME, S1)]
    assert len(sent(asked, Pull)) == 4
    assert resolved([*session.answer(asked, S0), *session.answer(asked, S1)]) == [(second, None)]


def test_a_push_that_was_begun_is_completed_although_it_is_cancelled() -> None:
    session = Session()
    session.attach()
    push, finish = session.transfer("push"), Finish(0.0)
    asked = session.ask(push)
    assert session.handle(Cancelled(push)) == []
    session.answer(asked, S0)
    assert session.handle(Cancelled(push)) == [], "applied in part"
    assert session.ask(finish) == []
    assert (push, None) in resolved(session.answer(asked, S1))


@pytest.mark.parametrize("kind", ["push", "push_pull"])
def test_a_push_of_which_nothing_has_left_can_be_withdrawn(kind: str) -> None:
    session = Session()
    session.get(WELCOME)
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init)
    session.get(session.job(init.request))
    push = session.transfer(kind)
    session.ask(push)
    assert resolved(session.handle(Cancelled(push))) == [(push, Cancelled(push))]
    assert sent([*session.get(WELCOME, S0), *session.get(WELCOME, S1)], Push) == []


def test_what_others_know_of_is_not_withdrawn() -> None:
    session = Session()
    session.attach()
    enter = EnterBarrier(0.0, barrier="b")
    session.ask(enter)
    assert session.handle(Cancelled(enter)) == []
    assert resolved(session.get(Released(enter.request, 0))) == [(enter, None)]


def test_finish_says_goodbye_when_the_coordinator_knows_of_the_last_step_and_does_not_wait_for_its_end() -> None:
    session = Session(job(*"abcd", staleness=0))
    session.attach()
    requests = session.ask(session.transfer("push", whole=True), timeout=60.0)
    session.answer(requests, S0)
    (arrive,) = sent(session.answer(requests, S1), Arrive)
    finish = Finish(0.0)
    assert session.ask(finish, timeout=60.0) == []
    again = session.wait(5.0, hear=True)
    assert sent(again, Arrive) == [arrive], "it may be lost"
    assert sent(again, Leave) == []
    assert len(sent(session.get(Waiting(arrive.request, "worker 1 (w1)")), Leave, COORDINATOR)) == 1
    assert resolved(session.get(Left())) == [(finish, None)]


def test_finish_does_not_wait_for_a_word_of_a_coordinator_that_is_gone() -> None:
    session = Session(job(*"abcd", staleness=0))
    session.attach()
    requests = session.ask(session.transfer("push", whole=True), timeout=60.0)
    session.answer(requests, S0)
    session.answer(requests, S1)
    finish = Finish(0.0)
    session.ask(finish, timeout=60.0)
    assert resolved(session.wait(12.0))[-1] == (finish, None)


def test_finish_waits_for_transfers_although_the_coordinator_is_gone() -> None:
    session = Session()
    session.attach()
    requests = session.ask(session.transfer("push"), timeout=60.0)
    session.wait(12.0)
    finish = Finish(0.0)
    assert session.ask(finish) == []
    session.answer(requests, S0)
    actions = session.answer(requests, S1)
    assert resolved(actions)[-1] == (finish, None)
    assert len(sent(actions, Leave)) == 2


def test_finish_that_waits_for_transfers_outlives_the_coordinator() -> None:
    session = Session()
    session.attach()
    requests = session.ask(session.transfer("push"), timeout=60.0)
    finish = Finish(0.0)
    session.ask(finish, timeout=60.0)
    assert resolved(session.wait(12.0)) == []
    session.answer(requests, S0)
    assert resolved(session.answer(requests, S1))[-1] == (finish, None)


def test_what_waits_for_the_coordinator_when_the_worker_finishes_is_told() -> None:
    session = Session()
    session.attach()
    enter, finish = EnterBarrier(0.0, barrier="x"), Finish(0.0)
    session.ask(enter)
    session.ask(finish)
    (done, told) = resolved(session.get(Left()))
    assert done == (finish, None)
    assert isinstance(told[1], ClosedError)


def test_a_finish_that_never_joined_is_done_at_once() -> None:
    finish = Finish(0.0)
    assert resolved(Session().ask(finish)) == [(finish, None)]


def test_a_shutdown_fails_what_waits_and_is_answered_with_a_goodbye() -> None:
    session = Session()
    session.attach()
    session.ask(session.transfer("push"))
    actions = session.get(Shutdown("SIGTERM"))
    assert isinstance(resolved(actions)[0][1], ShutdownError)
    assert len(sent(actions, Leave, COORDINATOR)) == 1
    assert isinstance(resolved(session.ask(session.transfer("pull")))[0][1], ShutdownError)
    finish = Finish(0.0)
    assert resolved(session.ask(finish)) == [(finish, None)]


def test_an_evicted_worker_is_told_at_every_call() -> None:
    session = Session()
    session.attach()
    session.ask(session.transfer("push"))
    actions = session.get(error(EvictedError))
    assert isinstance(resolved(actions)[0][1], EvictedError)
    assert errors(actions) == []
    assert isinstance(resolved(session.ask(EnterBarrier(0.0, barrier="x")))[0][1], EvictedError)


def test_close_fails_what_waits_and_says_goodbye() -> None:
    session = Session()
    session.attach()
    session.ask(session.transfer("push"))
    actions = session.handle(Stop("closed"))
    assert len(sent(actions, Leave)) == 3
    assert isinstance(resolved(actions)[0][1], ClosedError)
    assert exits_of(actions) == [], "the coordinator has not answered"
    assert exits_of(session.get(Left())) == [0]


def test_close_withdraws_nothing_of_a_coordinator_that_has_heard_the_goodbye() -> None:
    session = Session()
    session.get(WELCOME)
    session.ask(StartJob(0.0, job=session.spec, values=zeros(session.spec)))
    actions = session.handle(Stop("closed"))
    assert isinstance(resolved(actions)[0][1], ClosedError)
    assert len(sent(actions, Leave)) == 1
    assert sent(actions, Withdraw) == [], "it would be refused, and a warning of the log"


def test_close_waits_for_the_goodbyes_answer_no_longer_than_it_may() -> None:
    silent = Session()
    silent.attach()
    silent.handle(Stop("closed"))
    assert exits_of(silent.wait(FAREWELL_S - 0.1)) == []
    assert exits_of(silent.wait(FAREWELL_S + 0.1)) == [0]
    impatient = Session()
    impatient.attach()
    assert exits_of(impatient.handle(Stop("closed"))) == []
    assert exits_of(impatient.handle(Stop("closed"))) == [0]


@pytest.mark.parametrize("answer", [Shutdown("SIGTERM"), Error.of(0, NotJoinedError("who are you?"))])
def test_close_does_not_wait_for_a_coordinator_that_will_not_answer(answer: Any) -> None:
    session = Session()
    session.attach()
    session.handle(Stop("closed"))
    assert exits_of(session.get(answer)) == [0]
    told = Session()
    told.attach()
    told.get(answer)
    assert exits_of(told.handle(Stop("closed"))) == [0]


def test_close_does_not_wait_for_a_coordinator_that_is_lost_or_was_never_heard() -> None:
    assert exits_of(Session().handle(Stop("closed"))) == [0]
    session = Session()
    session.attach()
    session.wait(12.0)
    assert session.machine.member.lost
    assert exits_of(session.handle(Stop("closed"))) == [0]


NASTY, SHOWN = "a\n\x1b[2J\u202e", r"a\n\x1b[2J\u202e"


def test_what_the_coordinator_says_is_raised_in_one_line() -> None:
    session = Session()
    session.get(WELCOME)
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init, timeout=1.0)
    session.get(Waiting(init.request, NASTY))
    ((_, late),) = resolved(session.wait(1.0))
    assert SHOWN in str(late)
    assert str(late).isprintable()
    session.ask(StartJob(0.0, job=session.spec, values=zeros(session.spec)))
    ((_, ended),) = resolved(session.get(Shutdown(NASTY)))
    assert str(ended) == f"the cluster has ended: {SHOWN}"
