"""The worker's machine: operations in, messages out, and an answer to every operation by its deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.core.machines import errors, exits_of, failed, identity, job, logged, placement, resolved, sent, zeros
from tests.tables import for_each
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol import messages as m
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
from zmqps.core.worker.extensions import SessionMachine
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
WELCOME = m.Welcome(m.PROTOCOL_VERSION, b"i" * 16, "c", 3, 1.0, 10.0, 4, 2, proof=PROOF)
LOST = m.Lost("server", 1, "s1", b"x" * 16, 10.0)


def row(number: int, epoch: int = 1, *, rank: int | None = None) -> dict[str, Any]:
    """Return what a worker is told of a server."""
    keys = {"ticket": (b"t" * 16).hex(), "proof": PROOF.hex()}
    rank = number if rank is None else rank
    return {"name": f"s{number}", "endpoint": f"tcp://s{number}:1", "rank": rank, "epoch": epoch, **keys}


def values_of(exchange: Exchange) -> list[float]:
    """Return what a pull has brought, an element a parameter."""
    assert exchange.pull is not None
    return [float(array[0]) for array in exchange.pull.target.arrays if array is not None]


class Session:
    """A session and the clock, with its invariants checked after every event."""

    def __init__(self, spec: JobSpec | None = None, shards: int = 2) -> None:
        self.machine = SessionMachine(identity("worker", "w"), "tcp://coordinator:1")
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
                actions += self.get(m.Waiting(0, ""))
            actions += self.machine.on_deadline(self.now)
            self.machine.validate()
        self.now = until
        return actions

    def job(self, request: int, load: int = 0, epoch: int = 1, names: str = "01") -> m.Job:
        servers = [row(int(name), epoch, rank=rank) for rank, name in enumerate(names)]
        where = {**self.placement.to_wire(), "servers": servers}
        return m.Job(request, epoch, self.spec.to_wire(), where, load, 0, 2, "", 3)

    def start(self, timeout: float = 5.0) -> StartJob:
        """Ask for the job."""
        init = StartJob(0.0, job=self.spec, values=zeros(self.spec))
        self.ask(init, timeout)
        return init

    def attach(self, **placement: Any) -> None:
        """Join, and take a job that runs already, whose placement may say more than where its shards are."""
        self.get(WELCOME)
        init = self.start()
        told = self.job(init.request)
        told.placement.update(placement)
        assert resolved(self.get(told))[0][0] is init
        for peer in (S0, S1):
            self.get(WELCOME, peer)

    @classmethod
    def joined(cls, spec: JobSpec | None = None) -> Session:
        session = cls(spec)
        session.get(WELCOME)
        return session

    @classmethod
    def attached(cls, spec: JobSpec | None = None) -> Session:
        session = cls(spec)
        session.attach()
        return session

    def transfer(
        self,
        kind: str,
        value: float = 1.0,
        parameters: frozenset[int] | None = None,
        *,
        whole: bool = False,
        **pull: Any,
    ) -> Exchange:
        """Return a push, a pull or both; ``pull``: what else the pull asks for."""
        arrays = [np.full(p.size, value, np.float32) for p in self.spec.parameters]
        cargoes = plan(self.placement, parameters)
        out = [np.zeros(p.size, np.float32) for p in self.spec.parameters]
        return Exchange(
            push=Pushing(cargoes=cargoes, source=Source(arrays=arrays), whole=whole) if kind != "pull" else None,
            pull=Pulling(cargoes=cargoes, target=Target(arrays=out), **pull) if kind != "push" else None,
        )

    def acknowledge(self, actions: list[Action], *peers: bytes) -> list[Action]:
        """Acknowledge what was brought to these servers, by default to both."""
        done = []
        for peer in peers or (S0, S1):
            for message in [*sent(actions, m.Push, peer), *sent(actions, m.Load, peer)]:
                done += self.get(m.Ack(message.request, [1] * len(message.parts), [0] * len(message.parts)), peer)
        return done

    def read(self, actions: list[Action], versions: dict[bytes, int], value: float | None = None) -> list[Action]:
        """Answer the pulls among the actions; the values are the servers' versions unless one is given."""
        done = []
        for peer, version in versions.items():
            for pull in sent(actions, m.Pull, peer):
                payload = [np.full(8, version if value is None else value, np.float32)] * len(pull.parts)
                done += self.get(m.Values(pull.request, "raw", [version] * len(pull.parts), [], payload), peer)
        return done

    def answer(self, actions: list[Action], *peers: bytes) -> list[Action]:
        """Answer everything that went to these servers, by default to both."""
        peers = peers or (S0, S1)
        return [*self.acknowledge(actions, *peers), *self.read(actions, dict.fromkeys(peers, 1), value=0.0)]


class Attached(Session):
    """A worker of a job on two servers that know it, whose placement says more than where its shards are."""

    def __init__(self, placement: dict[str, Any], **options: Any) -> None:
        super().__init__(job(*"abcd", **options))
        self.attach(**placement)


def error(cls: type, request: int = 0, **facts: Any) -> m.Error:
    e = cls(**(facts or {"reason": "because"}))
    return m.Error(request, e.code, str(e), e.facts())


# --- the job ------------------------------------------------------------------------------------


def test_the_note_of_a_job_is_a_warning_and_its_number_of_workers_counts() -> None:
    session = Session.joined()
    init = session.start()
    assert logged(session.get(session.job(init.request, load=1))) == ""
    actions = session.get(replace(session.job(init.request), num_workers=5, note="the job 'x' goes on", rank=4))
    assert [(a.level, a.text) for a in actions if isinstance(a, Log)] == [("warning", "the job 'x' goes on")]
    assert resolved(actions)[0][0] is init
    assert (session.machine.member.cluster.num_workers, session.machine.member.rank) == (5, 4)


def test_a_job_whose_chief_went_back_to_the_optimizers_own_numbers_takes_those_away_that_were_heard_of() -> None:
    session = Session.joined()
    session.get(m.HeartbeatAck(2, 0, (1.0, 1.0, 0.5)))
    assert session.machine.member.cluster.terms == (1.0, 1.0, 0.5)
    init = session.start()
    session.get(session.job(init.request))
    assert session.machine.member.cluster.terms == ()


# --- joining ------------------------------------------------------------------------------------


def test_connect_waits_for_the_coordinators_welcome() -> None:
    session = Session()
    assert [a.endpoint for a in session.actions if isinstance(a, Connect)] == ["tcp://coordinator:1"]
    assert [got.magic for got in sent(session.actions, m.Hello)] == [m.MAGIC]
    join = Join(0.0)
    assert session.ask(join) == []
    assert resolved(session.get(WELCOME)) == [(join, None)]
    assert session.machine.member.rank == 3


def test_a_connect_that_nobody_answers_says_whom_it_waited_for() -> None:
    session = Session()
    join = Join(0.0)
    session.ask(join, timeout=2.0)
    value = failed(session.wait(2.0), DeadlineError, join)
    assert (value.operation, value.seconds) == ("connect", 2.0)
    assert "the coordinator at tcp://coordinator:1" in value.waiting_for


def test_a_refused_hello_fails_the_connect_with_its_reason() -> None:
    session = Session()
    session.ask(Join(0.0))
    failed(session.get(error(EvictedError)), EvictedError)


# --- the job ------------------------------------------------------------------------------------


def test_an_init_uploads_values_in_the_jobs_order_whatever_its_own() -> None:
    session = Session.joined(job("a", "b"))
    values = [np.full(8, 2.0, np.float32), np.full(8, 1.0, np.float32)]
    init = StartJob(0.0, job=job("b", "a"), values=values)
    session.ask(init)
    session.get(session.job(init.request, load=1))
    loads = [got for peer in (S0, S1) for got in sent(session.get(WELCOME, peer), m.Load)]
    assert [np.frombuffer(bytes(got.payload[0]), np.float32).tolist() for got in loads] == [[1.0] * 8, [2.0] * 8]


def test_an_init_that_uploads_is_done_when_the_coordinator_says_so() -> None:
    session = Session.joined()
    init = session.start()
    session.get(session.job(init.request, load=1))
    for peer in (S0, S1):
        assert resolved(session.answer(session.get(WELCOME, peer), peer)) == []
    ((operation, value),) = resolved(session.get(session.job(init.request)))
    assert operation is init
    assert value.job == session.spec


def test_an_init_that_fails_is_withdrawn_and_the_next_one_works() -> None:
    session = Session.joined()
    first = session.start()
    facts = {"what": "x", "ours": "1", "theirs": "2", "owner": "w", "advice": "end it"}
    actions = session.get(error(JobMismatchError, first.request, **facts))
    failed(actions, JobMismatchError)
    assert [got.request for got in sent(actions, m.Withdraw)] == [first.request]
    session.attach()


def test_an_init_after_a_server_was_lost_during_the_upload_uses_the_new_placement() -> None:
    session = Session.joined()
    first = session.start()
    session.get(session.job(first.request, load=1))
    before = sent(session.get(WELCOME, S0), m.Load)
    failed(session.get(LOST), PeerLostError)
    session.spec = job(*"efgh")
    second = session.start()
    actions = session.get(session.job(second.request, load=1, epoch=2, names="02"))
    assert [(a.peer, a.endpoint) for a in actions if isinstance(a, Connect)] == [(server_peer(2), "tcp://s2:1")]
    assert len(sent(actions, m.Hello, S0)) == 1, "the connection to s0 is open already"
    loads = sent(session.get(WELCOME, S0), m.Load)
    assert {got.epoch for got in loads} == {2}
    assert not {got.request for got in before} & {got.request for got in loads}
    assert session.get(m.Ack(1, [1], []), S0) == [], "an answer to the first upload is not taken for one to the second"
    assert session.machine.attached is not None
    assert session.machine.attached.job == session.spec


@for_each("names", ["", "0", "012"])
def test_a_job_that_does_not_name_one_server_for_each_shard_fails_the_init(names: str) -> None:
    session = Session.joined()
    init = session.start()
    failed(session.get(session.job(init.request, names=names)), ProtocolError, init)
    assert session.machine.attached is None


def test_an_upload_to_a_server_that_refuses_us_fails_the_init() -> None:
    session = Session.attached()
    session.get(error(EvictedError), S0)
    init = session.start()
    assert [o for o, _ in resolved(session.get(session.job(init.request, load=1)))] == [init]


# --- transfers ----------------------------------------------------------------------------------


@for_each("kind", ["pull", "push"])
def test_a_transfer_is_done_when_every_shard_has_answered(kind: str) -> None:
    session = Session.attached()
    transfer = session.transfer(kind)
    actions = session.ask(transfer)
    assert resolved(session.answer(actions, S0)) == []
    assert resolved(session.answer(actions, S1)) == [(transfer, None)]
    assert getattr(session.machine.statistics(), {"pull": "pulls", "push": "pushes"}[kind]) == 1


def test_a_timeout_says_which_server_did_not_answer() -> None:
    session = Session.attached()
    session.answer(session.ask(session.transfer("push"), timeout=2.0), S0)
    value = failed(session.wait(2.0, hear=True), DeadlineError)
    assert value.waiting_for == "2 answers from server 1 (s1, tcp://s1:1), last heard from 2.0 s ago"


def test_what_was_given_up_is_never_sent_again_and_what_was_not_is() -> None:
    session = Session.attached()
    session.ask(session.transfer("push"), timeout=2.0)
    session.ask(session.transfer("pull"), timeout=30.0)
    asked = session.wait(20.0, hear=True)
    assert sent(asked, m.Push) == []
    assert session.machine.statistics().retries == 0
    again: list[Action] = []
    for server in (S0, S1):  # has had all that was sent before
        question = sent(asked, m.Pull, server)[-1]
        assert not question.parts
        again += session.get(m.Values(question.request, "raw", (), (), ()), server)
    assert sent(again, m.Push) == []
    assert len(sent(again, m.Pull)) >= 4
    assert session.machine.statistics().retries == len(sent(again, m.Pull))


def test_after_a_connection_broke_what_it_may_have_lost_is_said_again() -> None:
    session = Session.attached()
    actions = session.ask(session.transfer("push"), timeout=60.0)
    session.handle(Disconnected(S0))
    assert sent(session.wait(20.0, hear=True), m.Push) == []
    assert sent(session.handle(Connected(S0)), m.Hello, S0)
    again = sent(session.get(WELCOME, S0), m.Push, S0)
    assert [push.seq for push in again] == [push.seq for push in sent(actions, m.Push, S0)]
    assert session.handle(Connected(b"server-7")) == []
    assert session.handle(Disconnected(b"server-7")) == []


def test_over_a_new_connection_to_the_coordinator_a_sign_of_life_and_all_questions_are_sent_at_once() -> None:
    session = Session.attached()
    enter = EnterBarrier(0.0, barrier="b")
    session.ask(enter)
    assert session.handle(Disconnected(COORDINATOR)) == []
    actions = session.handle(Connected(COORDINATOR))
    assert len(sent(actions, m.Heartbeat, COORDINATOR)) == 1
    assert [message.barrier for message in sent(actions, m.Enter, COORDINATOR)] == ["b"]


def test_a_worker_that_has_not_joined_says_hello_as_soon_as_there_is_a_connection() -> None:
    session = Session()
    actions = session.handle(Connected(COORDINATOR))
    assert [type(action.message) for action in actions if isinstance(action, Send)] == [m.Hello]


def test_a_lost_server_fails_all_of_its_own_operations_and_no_other() -> None:
    session = Session.attached()
    lost, rest = [session.transfer(kind) for kind in ("pull", "push", "push")], session.transfer("pull")
    assert rest.pull is not None
    rest.pull.cargoes = (rest.pull.cargoes[0], ())
    for transfer in lost:
        session.ask(transfer)
    actions = session.ask(rest)
    ended = resolved(session.get(LOST))
    assert [operation for operation, _ in ended] == lost
    for _, error in ended:
        assert isinstance(error, PeerLostError)
        assert str(error).startswith("lost server 1 (s1, tcp://s1:1): last sign of life 10.0 s ago")
    assert resolved(session.answer(actions, S0)) == [(rest, None)]
    failed(session.ask(session.transfer("push")), PeerLostError)


def test_the_loss_of_a_server_that_holds_nothing_of_the_job_fails_nothing() -> None:
    session = Session.attached()
    pull = session.transfer("pull")
    requests = session.ask(pull)
    assert session.get(m.Lost("server", 2, "s2", b"x" * 16, 10.0)) == []
    assert resolved(session.answer(requests)) == [(pull, None)]


def test_a_gradient_with_nan_is_refused_before_anything_is_sent() -> None:
    session = Session.attached()
    actions = session.ask(session.transfer("push", value=float("nan")))
    assert sent(actions, m.Push) == []
    value = failed(actions, NonFiniteGradientError)
    assert value.worker == "worker 3 (w, host, pid 7)"
    assert session.machine.statistics().nonfinite == 1


def test_an_answer_that_does_not_fit_fails_the_operation_at_once() -> None:
    session = Session.attached()
    pull = sent(session.ask(session.transfer("pull")), m.Pull, S0)[0]
    failed(session.get(m.Values(pull.request, "raw", [1], [], [np.zeros(3, np.float32)]), S0), ProtocolError)


def test_a_server_that_refuses_a_request_fails_its_operation() -> None:
    session = Session.attached()
    push = sent(session.ask(session.transfer("push")), m.Push, S0)[0]
    failed(session.get(error(NotJoinedError, push.request), S0), NotJoinedError)


def test_what_a_peer_sends_unasked_changes_nothing() -> None:
    session = Session.attached()
    assert session.get(m.Ack(99, [1], [0]), S0) == []
    assert session.get(m.Released(99, 0)) == []
    assert session.get(m.Released(99, 0), S0) == []
    assert session.get(m.Ack(1, [1], [0]), b"stranger") == []
    assert "dropped" in logged(session.handle(Undecodable(S0, ProtocolError("no"))))


# --- the coordinator's services -----------------------------------------------------------------


def test_a_barrier_that_times_out_says_whom_it_waited_for_and_withdraws() -> None:
    session = Session.attached()
    enter = EnterBarrier(0.0, barrier="epoch")
    session.ask(enter, timeout=3.0)
    session.get(m.Waiting(enter.request, "worker 1 (w1, h, pid 2)"))
    actions = session.wait(3.0, hear=True)
    value = failed(actions, DeadlineError)
    assert (value.operation, value.waiting_for) == ("barrier 'epoch'", "worker 1 (w1, h, pid 2)")
    assert [got.request for got in sent(actions, m.Withdraw)] == [enter.request]


def test_barrier_and_status_are_answered_by_an_answer_of_their_kind_alone() -> None:
    session = Session.attached()
    enter, status = EnterBarrier(0.0, barrier="x"), AskStatus(0.0)
    session.ask(enter)
    session.ask(status)
    for other in (m.Released(status.request, 0), m.Status(enter.request, {"a": 1}), session.job(enter.request)):
        assert session.get(other) == []
    assert resolved(session.get(m.Status(status.request, {"a": 1}))) == [(status, {"a": 1})]
    assert resolved(session.get(m.Released(enter.request, 0))) == [(enter, None)]


def test_a_silent_coordinator_fails_what_waits_for_it_while_transfers_go_on() -> None:
    session = Session.attached()
    enter, push = EnterBarrier(0.0, barrier="x"), session.transfer("push")
    session.ask(enter, timeout=60.0)
    requests = session.ask(push, timeout=60.0)
    actions = session.wait(12.0)
    assert len(sent(actions, m.Heartbeat)) >= 10
    value = failed(actions, PeerLostError, enter)
    assert str(value).startswith("lost the coordinator at tcp://coordinator:1: last sign of life")
    assert resolved(session.answer(requests)) == [(push, None)]
    failed(session.ask(EnterBarrier(0.0, barrier="y")), PeerLostError)


SYNCHRONOUS = replace(job(*"abcd"), mode="sync")


@for_each(
    "begun, version, timeout, until",
    [(0.0, 0, 60.0, 12.0), (12.0, 0, 5.0, 18.0), (12.0, 1, 60.0, None)],
    ids=["which is lost meanwhile", "at its deadline", "at once for what only a step brings"],
)
def test_a_pull_that_waits_for_a_commit_fails_with_a_silent_coordinator(
    begun: float, version: int, timeout: float, until: float | None
) -> None:
    session = Session.attached(SYNCHRONOUS)
    session.wait(begun)
    pull = session.transfer("pull", version=version)
    actions = session.ask(pull, timeout)
    if until is not None:
        assert resolved(actions) == []
        actions = session.wait(until)
    assert failed(actions, PeerLostError, pull).role == "coordinator"


def test_a_pull_of_values_that_are_there_goes_on_without_a_coordinator() -> None:
    session = Session.attached(SYNCHRONOUS)
    session.wait(9.5)  # silent for long, and not yet lost
    pull = session.transfer("pull")
    requests = session.ask(pull, timeout=60.0)
    assert resolved(session.wait(12.0)) == []
    assert [operation for operation, _ in resolved(session.answer(requests))] == [pull]


@for_each("mode", ["async", "sync"])
@for_each("kind", ["push", "pull"])
@for_each("begun", [9.5, 12.0])
def test_what_servers_do_not_answer_without_a_coordinator_fails_long_before_its_deadline(
    kind: str, mode: str, begun: float
) -> None:
    session = Session.attached(SYNCHRONOUS if mode == "sync" else None)
    session.wait(begun)
    operation = session.transfer(kind)
    session.ask(operation, timeout=600.0)
    assert resolved(session.wait(14.5)) == []
    value = failed(session.wait(17.0), PeerLostError, operation)
    assert value.name == "the coordinator at tcp://coordinator:1"


def test_what_waits_for_a_coordinator_that_was_started_again_is_told_so() -> None:
    session = Session.attached()
    enter, push, late = EnterBarrier(0.0, barrier="b"), session.transfer("push"), EnterBarrier(0.0, barrier="c")
    session.ask(enter)
    requests = session.ask(push, timeout=60.0)
    told = resolved(session.get(m.Error.of(enter.request, NotJoinedError("Enter before Hello"))))
    assert [operation for operation, _ in told] == [enter]
    assert session.get(m.Error.of(0, NotJoinedError("Heartbeat before Hello"))) == []
    told += resolved(session.ask(late))
    for _, error in told:
        assert isinstance(error, CoordinatorRestartedError)
        assert "is a new one" in str(error)
        assert "connect again, and init with values that you have saved" in str(error)
    assert resolved(session.answer(requests)) == [(push, None)], "servers may know no more than it does"


def test_who_has_given_up_a_coordinator_still_hears_that_there_is_another_one() -> None:
    session = Session.attached()
    told = logged(session.wait(12.0))
    assert "its servers end when they miss it, too, and the values they hold are lost then" in told
    assert session.get(m.Error.of(0, NotJoinedError("Heartbeat before Hello"))) == []
    failed(session.ask(EnterBarrier(0.0, barrier="b")), CoordinatorRestartedError)


def test_a_server_that_has_ended_with_the_coordinator_fails_what_needs_it() -> None:
    session = Session.attached()
    pull = session.transfer("pull")
    session.ask(pull, timeout=600.0)
    lost = PeerLostError(role="coordinator", name="the coordinator at x", silent_s=10.0, advice="server 1 has ended")
    ((operation, value),) = resolved(session.get(m.Error.of(0, lost), S1))
    assert (operation, str(value)) == (pull, str(lost))
    failed(session.ask(session.transfer("push")), PeerLostError)


@for_each(
    "until, hear, text",
    [(2.0, False, ""), (6.0, False, "; the coordinator has been silent for 6.0 s"), (8.0, True, "")],
)
def test_a_deadline_that_comes_before_the_loss_tells_of_a_silence(until: float, hear: bool, text: str) -> None:
    session = Session.attached()
    session.ask(EnterBarrier(0.0, barrier="x"), timeout=until)
    error = failed(session.wait(until, hear=hear), DeadlineError)
    assert error.waiting_for == f"the coordinator's answer{text}"


@given(st.lists(st.tuples(st.floats(0.1, 3.0), st.booleans()), min_size=1, max_size=12))
def test_each_of_many_operations_ends_at_its_own_deadline_unless_it_was_given_up_before(
    asked: list[tuple[float, bool]],
) -> None:
    session = Session.attached()
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
    session = Session.attached()
    requests = session.ask(session.transfer("push"))
    finish = Finish(0.0)
    assert session.ask(finish) == []
    failed(session.ask(session.transfer("pull")), ClosedError)
    actions = session.answer(requests)
    assert {a.peer for a in actions if isinstance(getattr(a, "message", None), m.Leave)} == {S0, S1, COORDINATOR}
    assert resolved(session.get(m.Left())) == [(finish, None)]
    assert session.machine.next_deadline() is None or resolved(session.wait(100.0)) == []


def test_a_goodbye_that_nobody_answers_is_said_all_the_same() -> None:
    session = Session.attached()
    finish = Finish(0.0)
    session.ask(finish, timeout=60.0)
    assert resolved(session.wait(FAREWELL_S - 0.1)) == []
    assert resolved(session.wait(FAREWELL_S + 0.1)) == [(finish, None)]


def test_a_finish_that_takes_too_long_says_whom_it_waits_for() -> None:
    session = Session.attached()
    finish = Finish(0.0)
    session.ask(finish, timeout=FAREWELL_S / 2)
    ((operation, value),) = resolved(session.wait(FAREWELL_S))
    assert operation is finish
    assert (value.operation, value.waiting_for) == ("finish", "the coordinator at tcp://coordinator:1")


def test_a_pull_that_is_cancelled_is_withdrawn_and_its_answer_lands_nowhere() -> None:
    session = Session.attached()
    pull, finish = session.transfer("pull", version=100), Finish(0.0)  # parked at the servers
    asked = session.ask(pull)
    assert session.machine.statistics().in_flight_bytes > 0
    assert session.ask(finish) == []
    actions = session.handle(Cancelled(pull))
    assert resolved(actions) == [(pull, Cancelled(pull))]
    for peer in (S0, S1):
        parked = [got.request for got in sent(asked, m.Pull, peer)]
        assert [got.request for got in sent(actions, m.Withdraw, peer)] == parked != []
    assert len(sent(actions, m.Leave)) == 3, "at once"
    assert session.machine.statistics().in_flight_bytes == 0
    session.read(asked, {S0: 1, S1: 1})
    assert session.machine.statistics().in_flight_bytes == 0
    assert values_of(pull) == [0.0] * 4
    assert session.handle(Cancelled(pull)) == [], "once"


def test_a_push_that_was_begun_is_completed_although_it_is_cancelled() -> None:
    session = Session.attached()
    push, finish = session.transfer("push"), Finish(0.0)
    asked = session.ask(push)
    assert session.handle(Cancelled(push)) == []
    session.answer(asked, S0)
    assert session.handle(Cancelled(push)) == [], "applied in part"
    assert session.ask(finish) == []
    assert (push, None) in resolved(session.answer(asked, S1))


@for_each("kind", ["push", "pull", "push_pull"])
def test_a_transfer_that_is_cancelled_before_it_was_sent_never_is(kind: str) -> None:
    session = Session.joined()
    session.get(session.job(session.start().request))
    first, second = session.transfer(kind), session.transfer("pull")
    session.ask(first)
    session.ask(second)
    assert resolved(session.handle(Cancelled(first))) == [(first, Cancelled(first))]
    asked = [*session.get(WELCOME, S0), *session.get(WELCOME, S1)]
    assert (len(sent(asked, m.Push)), len(sent(asked, m.Pull))) == (0, 4)
    assert resolved(session.answer(asked)) == [(second, None)]


def test_what_others_know_of_is_not_withdrawn() -> None:
    session = Session.attached()
    enter = EnterBarrier(0.0, barrier="b")
    session.ask(enter)
    assert session.handle(Cancelled(enter)) == []
    assert resolved(session.get(m.Released(enter.request, 0))) == [(enter, None)]


def test_finish_says_goodbye_when_the_coordinator_knows_of_the_last_step_and_does_not_wait_for_its_end() -> None:
    session = Session.attached(SYNCHRONOUS)
    requests = session.ask(session.transfer("push", whole=True), timeout=60.0)
    (arrive,) = sent(session.answer(requests), m.Arrive)
    finish = Finish(0.0)
    assert session.ask(finish, timeout=60.0) == []
    again = session.wait(5.0, hear=True)
    assert sent(again, m.Arrive) == [arrive], "it may be lost"
    assert sent(again, m.Leave) == []
    assert len(sent(session.get(m.Waiting(arrive.request, "worker 1 (w1)")), m.Leave, COORDINATOR)) == 1
    assert resolved(session.get(m.Left())) == [(finish, None)]


def test_finish_does_not_wait_for_a_word_of_a_coordinator_that_is_gone() -> None:
    session = Session.attached(SYNCHRONOUS)
    requests = session.ask(session.transfer("push", whole=True), timeout=60.0)
    session.answer(requests)
    finish = Finish(0.0)
    session.ask(finish, timeout=60.0)
    assert resolved(session.wait(12.0))[-1] == (finish, None)


@for_each("asked_before", [False, True])
def test_finish_waits_for_transfers_although_the_coordinator_is_gone(asked_before: bool) -> None:
    session = Session.attached()
    requests = session.ask(session.transfer("push"), timeout=60.0)
    finish = Finish(0.0)
    if asked_before:
        assert session.ask(finish, timeout=60.0) == []
    assert resolved(session.wait(12.0)) == []
    if not asked_before:
        assert session.ask(finish) == []
    actions = session.answer(requests)
    assert resolved(actions)[-1] == (finish, None)
    assert len(sent(actions, m.Leave)) == 2


def test_what_waits_for_the_coordinator_when_the_worker_finishes_is_told() -> None:
    session = Session.attached()
    enter, finish = EnterBarrier(0.0, barrier="x"), Finish(0.0)
    session.ask(enter)
    session.ask(finish)
    (done, told) = resolved(session.get(m.Left()))
    assert done == (finish, None)
    assert isinstance(told[1], ClosedError)


def test_a_finish_that_never_joined_is_done_at_once() -> None:
    finish = Finish(0.0)
    assert resolved(Session().ask(finish)) == [(finish, None)]


def test_a_shutdown_fails_what_waits_and_is_answered_with_a_goodbye() -> None:
    session = Session.attached()
    session.ask(session.transfer("push"))
    actions = session.get(m.Shutdown("SIGTERM"))
    failed(actions, ShutdownError)
    assert len(sent(actions, m.Leave, COORDINATOR)) == 1
    failed(session.ask(session.transfer("pull")), ShutdownError)
    finish = Finish(0.0)
    assert resolved(session.ask(finish)) == [(finish, None)]


def test_an_evicted_worker_is_told_at_every_call() -> None:
    session = Session.attached()
    session.ask(session.transfer("push"))
    actions = session.get(error(EvictedError))
    failed(actions, EvictedError)
    assert errors(actions) == []
    failed(session.ask(EnterBarrier(0.0, barrier="x")), EvictedError)


def test_close_fails_what_waits_and_says_goodbye() -> None:
    session = Session.attached()
    session.ask(session.transfer("push"))
    actions = session.handle(Stop("closed"))
    assert len(sent(actions, m.Leave)) == 3
    failed(actions, ClosedError)
    assert exits_of(actions) == [], "the coordinator has not answered"
    assert exits_of(session.get(m.Left())) == [0]


def test_close_withdraws_nothing_of_a_coordinator_that_has_heard_the_goodbye() -> None:
    session = Session.joined()
    session.ask(StartJob(0.0, job=session.spec, values=zeros(session.spec)))
    actions = session.handle(Stop("closed"))
    failed(actions, ClosedError)
    assert len(sent(actions, m.Leave)) == 1
    assert sent(actions, m.Withdraw) == [], "it would be refused, and a warning of the log"


def test_close_waits_for_the_goodbyes_answer_no_longer_than_it_may() -> None:
    silent = Session.attached()
    silent.handle(Stop("closed"))
    assert exits_of(silent.wait(FAREWELL_S - 0.1)) == []
    assert exits_of(silent.wait(FAREWELL_S + 0.1)) == [0]
    impatient = Session.attached()
    assert exits_of(impatient.handle(Stop("closed"))) == []
    assert exits_of(impatient.handle(Stop("closed"))) == [0]


@for_each("answer", [m.Shutdown("SIGTERM"), m.Error.of(0, NotJoinedError("who are you?"))])
def test_close_does_not_wait_for_a_coordinator_that_will_not_answer(answer: Any) -> None:
    session = Session.attached()
    session.handle(Stop("closed"))
    assert exits_of(session.get(answer)) == [0]
    told = Session.attached()
    told.get(answer)
    assert exits_of(told.handle(Stop("closed"))) == [0]


def test_close_does_not_wait_for_a_coordinator_that_is_lost_or_was_never_heard() -> None:
    assert exits_of(Session().handle(Stop("closed"))) == [0]
    session = Session.attached()
    session.wait(12.0)
    assert session.machine.member.lost
    assert exits_of(session.handle(Stop("closed"))) == [0]


NASTY, SHOWN = "a\n\x1b[2J\u202e", r"a\n\x1b[2J\u202e"


def test_what_the_coordinator_says_is_raised_in_one_line() -> None:
    session = Session.joined()
    init = StartJob(0.0, job=session.spec, values=zeros(session.spec))
    session.ask(init, timeout=1.0)
    session.get(m.Waiting(init.request, NASTY))
    ((_, late),) = resolved(session.wait(1.0))
    assert SHOWN in str(late)
    assert str(late).isprintable()
    session.ask(StartJob(0.0, job=session.spec, values=zeros(session.spec)))
    ((_, ended),) = resolved(session.get(m.Shutdown(NASTY)))
    assert str(ended) == f"the cluster has ended: {SHOWN}"
