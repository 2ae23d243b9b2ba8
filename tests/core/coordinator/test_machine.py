"""The coordinator: who is told what when nodes wait, vanish, finish, or come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.machines import (
    INTERVAL,
    TIMEOUT,
    Coordinator,
    errors,
    exits_of,
    hello,
    identity,
    job,
    logged,
    peer,
    receivers,
    sent,
)
from tests.tables import for_each
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Log, Received, Stop, Undecodable
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import (
    EvictedError,
    IdentityError,
    NotJoinedError,
    PeerLostError,
    ProtocolError,
    ProtocolVersionError,
    from_wire,
)


def enter(coordinator: Coordinator, name: str, barrier: str = "end", request: int = 5) -> list:  # type: ignore[type-arg]
    return coordinator.take(name, m.Enter(request, barrier))


# --- joining ------------------------------------------------------------------------------------


def test_a_hello_is_answered_with_rank_and_the_terms_of_the_membership() -> None:
    coordinator = Coordinator(servers=2, workers=4)
    (welcome,) = sent(coordinator.join("w0"), m.Welcome)
    assert (welcome.rank, welcome.num_workers, welcome.num_servers) == (0, 4, 2)
    assert (welcome.heartbeat_interval, welcome.heartbeat_timeout) == (INTERVAL, TIMEOUT)
    assert [w.rank for w in sent(coordinator.join("w1", "s0"), m.Welcome)] == [1, 0]


def test_unless_told_otherwise_a_sign_of_life_is_due_each_second_and_ten_seconds_of_silence_are_too_many() -> None:
    coordinator = CoordinatorMachine(identity("coordinator"), CoordinatorOptions(servers=1))
    (welcome,) = sent(coordinator.handle(Received(peer("w0"), hello("worker", "w0")), 0.0), m.Welcome)
    assert (welcome.heartbeat_interval, welcome.heartbeat_timeout) == (1.0, 10.0)


def test_a_server_is_told_the_number_of_workers_of_the_largest_job() -> None:
    coordinator = Coordinator.joined("s0", "w0", "w1.b", "w2.b", "w3.c", servers=2)
    assert [welcome.num_workers for welcome in sent(coordinator.join("s1"), m.Welcome)] == [2]


def test_a_repeated_hello_keeps_its_rank_and_joins_once() -> None:
    coordinator = Coordinator.joined("w0")
    again = coordinator.join("w0")
    assert [w.rank for w in sent(again, m.Welcome)] == [0]
    assert logged(again) == ""
    assert coordinator.run().num_workers == 1


@for_each("message", [m.Heartbeat({}), m.Enter(3, "x"), m.Init(3, {}), m.Withdraw(3), m.Ready(1, 0)])
def test_a_request_before_hello_is_refused(message) -> None:  # type: ignore[no-untyped-def]
    assert errors(Coordinator().take("w0", message)) == [NotJoinedError.code]


def test_a_goodbye_is_answered_however_often_it_is_said() -> None:
    coordinator = Coordinator.joined("w0")
    for _ in range(2):
        assert sent(coordinator.take("w0", m.Leave("closed")), m.Left, peer("w0")) == [m.Left()]
    assert coordinator.machine.membership.members == {}


@for_each("message", [m.Pull(3, 1, 0, 0, "raw", ()), m.Left()])
def test_what_is_not_for_a_coordinator_is_refused(message) -> None:  # type: ignore[no-untyped-def]
    coordinator = Coordinator.joined("w0")
    assert errors(coordinator.take("w0", message)) == [ProtocolError.code]


def test_an_observer_cannot_enter_a_barrier_and_is_not_counted() -> None:
    coordinator = Coordinator.joined("o0", "w0")
    assert coordinator.run().num_workers == 1
    assert errors(enter(coordinator, "o0")) == [IdentityError.code]
    assert receivers(enter(coordinator, "w0"), m.Released) == [peer("w0")]


def test_rubbish_is_answered_with_its_error_and_counted() -> None:
    coordinator = Coordinator()
    actions = coordinator.handle(Undecodable(peer("x"), ProtocolError("no")))
    assert [(error.request, error.code) for error in sent(actions, m.Error)] == [(0, ProtocolError.code)]
    assert logged(actions).startswith("refused a request of ")
    assert coordinator.machine.status(0.0)["counters"]["refused"] == 1


# --- barriers -----------------------------------------------------------------------------------


def test_a_barrier_waits_for_the_expected_workers_to_join() -> None:
    coordinator = Coordinator.joined("w0", workers=2)
    assert "1 of 2 workers that has not joined the job" in sent(enter(coordinator, "w0"), m.Waiting)[0].text
    coordinator.join("w1")
    assert len(receivers(enter(coordinator, "w1"), m.Released)) == 2


def test_who_waits_is_told_for_whom_and_again_when_that_changes() -> None:
    coordinator = Coordinator.joined("w0", "w1", "w2")
    text = sent(enter(coordinator, "w0"), m.Waiting, peer("w0"))[0].text
    assert "worker 1 (w1" in text
    assert "worker 2 (w2" in text
    enter(coordinator, "w1")
    text = sent(coordinator.wait(0.5), m.Waiting, peer("w0"))[-1].text
    assert "w1" not in text
    assert "worker 2 (w2" in text


def test_who_withdraws_is_awaited_again() -> None:
    coordinator = Coordinator.joined("w0", "w1", "w2")
    enter(coordinator, "w0")
    enter(coordinator, "w1", request=9)
    coordinator.take("w1", m.Withdraw(9))
    assert "worker 1 (w1" in sent(coordinator.wait(0.5), m.Waiting, peer("w0"))[-1].text
    assert sent(enter(coordinator, "w2"), m.Released) == []


def test_a_hundred_awaited_workers_are_named_briefly_and_told_in_few_messages() -> None:
    names = [f"w{i}" for i in range(200)]
    coordinator = Coordinator.joined(*names)
    actions = [action for name in names[:100] for action in enter(coordinator, name)] + coordinator.wait(0.5, *names)
    waiting = sent(actions, m.Waiting)
    assert len(waiting) <= 3 * 100
    assert "worker 100 (w100" in waiting[-1].text
    assert waiting[-1].text.endswith(" and 92 more")
    assert decode(encode(waiting[-1])) == waiting[-1]


def test_a_lost_worker_is_named_to_those_who_wait_for_it() -> None:
    coordinator = Coordinator.joined("w0", "w1")
    enter(coordinator, "w0")
    (message,) = [got for got in sent(coordinator.wait(11.0, "w0"), m.Error, peer("w0")) if got.request == 5]
    error = from_wire(message.code, message.text, message.facts)
    assert isinstance(error, PeerLostError)
    assert error.role == "worker"
    assert "worker 1 (w1, host, pid 7)" in error.name
    assert error.silent_s == pytest.approx(TIMEOUT, abs=1)


def test_a_lost_worker_that_had_entered_does_not_fail_the_barrier() -> None:
    coordinator = Coordinator.joined("w0", "w1", "w2")
    enter(coordinator, "w1")
    enter(coordinator, "w0")
    assert errors(coordinator.wait(11.0, "w0", "w2"), peer("w0")) == []
    assert receivers(enter(coordinator, "w2"), m.Released) == [peer("w0"), peer("w2")]


def test_a_finished_worker_is_not_awaited() -> None:
    coordinator = Coordinator.joined("w0", "w1")
    enter(coordinator, "w0")
    assert receivers(coordinator.take("w1", m.Leave("finished")), m.Released) == [peer("w0")]


# --- vanishing ----------------------------------------------------------------------------------


def test_heartbeats_are_answered_and_keep_a_member_alive() -> None:
    coordinator = Coordinator.joined("w0")
    actions = coordinator.wait(50.0, "w0")
    assert len(sent(actions, m.HeartbeatAck)) >= 50
    assert sent(actions, m.Lost) == []


def test_a_lost_worker_is_announced_to_the_servers_and_a_lost_server_to_the_workers() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1")
    actions = coordinator.wait(11.0, "s0", "w0")
    assert set(receivers(actions, m.Departed)) == {peer("s0")}, "workers have no use for it"
    assert sent(actions, m.Departed)[0] == m.Departed(hello("worker", "w1").incarnation, 1)
    assert sent(actions, m.Lost) == []
    assert "lost worker 1 (w1" in logged(actions)
    actions = coordinator.wait(30.0, "w0")
    assert receivers(actions, m.Lost) == [peer("w0")]
    assert "lost server 0 (s0" in logged(actions)


@for_each("how", ["lost", "finished"])
def test_a_server_is_told_that_a_worker_has_gone_until_it_has_forgotten_it(how: str) -> None:
    coordinator = Coordinator.trains("s0", "s1", "w0", "w1", servers=2)
    if how == "lost":
        coordinator.wait(10.0, "s0", "s1", "w0")
    else:
        coordinator.take("w1", m.Leave("finished"))
    gone = hello("worker", "w1").incarnation
    coordinator.take("s0", m.Forgotten(gone))
    actions = coordinator.wait(coordinator.now + 3.5, "s0", "s1", "w0")
    assert receivers(actions, m.Departed) == [peer("s1")] * 3
    assert set(sent(actions, m.Departed)) == {m.Departed(gone, int(how == "lost"))}
    coordinator.take("s1", m.Forgotten(gone))
    assert sent(coordinator.wait(coordinator.now + 5.0, "s0", "s1", "w0"), m.Departed) == []


def test_a_lost_worker_of_a_job_that_no_server_has_is_announced_to_nobody() -> None:
    coordinator = Coordinator.joined("s0", "w0", "w1", "o0", servers=2)
    coordinator.init("w0", job())
    actions = coordinator.wait(11.0, "s0", "w0")
    assert sent(actions, m.Lost) == sent(actions, m.Departed) == []
    assert set(coordinator.run().members) == {hello("worker", "w0").incarnation}


def test_a_lost_member_that_speaks_again_is_told_that_it_was_evicted() -> None:
    coordinator = Coordinator()
    coordinator.now = 100.0
    coordinator.join("w0", "w1")
    assert EvictedError.code in errors(coordinator.wait(111.0, "w0"), peer("w1"))
    (told,) = sent(coordinator.take("w1", m.Heartbeat({})), m.Error)
    assert told.code == EvictedError.code
    assert "was silent for 10.0 s and presumed dead" in told.text
    assert errors(coordinator.join("w1")) == [EvictedError.code]
    assert [w.rank for w in sent(coordinator.join("w9"), m.Welcome)] == [1], "a new life takes the free rank"


def test_a_lost_observer_does_not_fail_the_start() -> None:
    coordinator = Coordinator.joined("s0", "w0", "o0")
    coordinator.init("w0", job())
    assert errors(coordinator.wait(11.0, "s0", "w0"), peer("w0")) == []


@for_each("loaded", [False, True])
def test_a_lost_server_fails_the_inits_that_wait_and_a_new_one_can_take_its_place(loaded: bool) -> None:
    coordinator = Coordinator.joined("s0", "s1", "w0", servers=2)
    coordinator.init("w0", job())
    coordinator.ready("s0", loaded=loaded)
    assert errors(coordinator.wait(11.0, "s0", "w0"), peer("w0")) == [PeerLostError.code]
    coordinator.join("s2")
    assert receivers(coordinator.init("w0", job(), request=2), m.Assign) == [peer("s0"), peer("s2")]


@for_each("leaves", [False, True])
def test_a_server_of_a_running_job_that_goes_is_announced_and_later_inits_are_told(leaves: bool) -> None:
    coordinator = Coordinator.trains("s0", "w0")
    actions = coordinator.take("s0", m.Leave("closed")) if leaves else coordinator.wait(11.0, "w0")
    assert [lost.role for lost in sent(actions, m.Lost, peer("w0"))] == ["server"]
    assert "lost server 0 (s0" in logged(actions)
    assert errors(coordinator.attach("w1", job())) == [PeerLostError.code]
    assert "lost server 0 (s0" in coordinator.machine.status(coordinator.now)["jobs"]["default"]["state"]


def test_a_coordinator_at_which_nobody_waits_does_not_wake_up_to_tell_for_whom() -> None:
    coordinator = Coordinator.trains("s0", "w0")
    coordinator.wait(1.0, "s0", "w0")
    assert len(sent(enter(coordinator, "w0"), m.Released)) == 1, "there is no other worker"
    assert coordinator.machine.next_deadline() > coordinator.now + 1.0


# --- the end ------------------------------------------------------------------------------------


def test_the_cluster_ends_when_the_expected_workers_have_finished() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", workers=2, once=True)
    assert sent(coordinator.take("w0", m.Leave("finished")), m.Shutdown) == []
    assert receivers(coordinator.take("w1", m.Leave("finished")), m.Shutdown) == [peer("s0")]
    assert exits_of(coordinator.take("s0", m.Leave("finished"))) == [exits.OK]


def test_the_cluster_does_not_end_before_the_expected_workers_have_come() -> None:
    coordinator = Coordinator.trains("s0", "w0", workers=2, once=True)
    assert sent(coordinator.take("w0", m.Leave("finished")), m.Shutdown) == []
    assert "default" in coordinator.machine.runs


def test_the_cluster_outlives_its_jobs_unless_it_is_for_one_only() -> None:
    coordinator = Coordinator.trains("s0", "w0", workers=1)
    actions = coordinator.take("w0", m.Leave("finished"))
    assert sent(actions, m.Shutdown) == []
    assert exits_of(actions) == []
    assert receivers(actions, m.Discard) == [peer("s0")]
    assert coordinator.machine.runs == {}
    assert receivers(coordinator.attach("w1", job("another")), m.Assign) == [peer("s0")]


def test_a_lost_worker_does_not_keep_the_cluster_from_ending() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1", workers=2, once=True)
    coordinator.take("w0", m.Leave("finished"))
    assert receivers(coordinator.wait(11.0, "s0"), m.Shutdown) == [peer("s0")]


def test_a_server_that_does_not_say_goodbye_delays_the_end_by_seconds_only() -> None:
    coordinator = Coordinator.trains("s0", "w0", workers=1, once=True)
    coordinator.take("w0", m.Leave("finished"))
    assert exits_of(coordinator.wait(4.0, "s0"))[:1] == [exits.OK]


@for_each("first, last", [("s0", "w0"), ("w0", "s0")])
def test_stop_shuts_everybody_down_tells_newcomers_and_ends_when_all_have_left(first: str, last: str) -> None:
    assert exits_of(Coordinator().handle(Stop("SIGTERM"))) == [exits.OK], "at once where nobody is"
    coordinator = Coordinator.trains("s0", "w0")
    assert receivers(coordinator.handle(Stop("SIGTERM")), m.Shutdown) == [peer("s0"), peer("w0")]
    assert receivers(coordinator.join("w1"), m.Shutdown) == [peer("w1")]
    assert exits_of(coordinator.take(first, m.Leave("finished" if first == "s0" else "closed"))) == []
    assert exits_of(coordinator.take(last, m.Leave("finished" if last == "s0" else "closed"))) == [exits.OK]


def test_an_idle_cluster_ends_after_its_lease_if_it_has_one() -> None:
    coordinator = Coordinator.joined("s0", idle_timeout=60.0)
    assert exits_of(coordinator.wait(59.0, "s0")) == []
    assert exits_of(coordinator.wait(64.0, "s0"))[:1] == [exits.IDLE]
    assert exits_of(Coordinator().wait(10_000.0)) == [], "by default it waits for ever"


def test_a_worker_keeps_the_lease_and_its_leaving_renews_it() -> None:
    coordinator = Coordinator.joined("w0", idle_timeout=60.0)
    assert exits_of(coordinator.wait(100.0, "w0")) == []
    coordinator.take("w0", m.Leave("closed"))
    assert exits_of(coordinator.wait(159.0)) == []
    assert exits_of(coordinator.wait(165.0))[:1] == [exits.IDLE]


def test_a_cluster_for_one_job_ends_with_the_first_that_is_finished() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1.b", once=True)
    actions = coordinator.take("w1.b", m.Leave("finished"))
    assert receivers(actions, m.Shutdown) == [peer("s0"), peer("w0")]
    assert receivers(actions, m.Discard) == [peer("s0")], "a server that does not hear the end frees its shard too"
    assert "job 'b' has ended: its workers have finished" in logged(actions)


# --- the status ---------------------------------------------------------------------------------


def test_the_status_says_who_is_here_who_has_gone_and_what_is_trained() -> None:
    coordinator = Coordinator.trains("s0", "s1", "w0", "w1", "w2", servers=2)
    coordinator.take("w0", m.Heartbeat({"pushes": 3}))
    coordinator.take("w1", m.Leave("finished"))
    coordinator.wait(11.0, "s0", "s1", "w0")
    enter(coordinator, "w0")
    (message,) = sent(coordinator.take("x", m.StatusRequest(8)), m.Status)
    assert message.request == 8
    status = message.status
    shown = status["jobs"]["default"]
    assert (status["state"], shown["state"], shown["mode"], shown["epoch"]) == ("ready", "training", "async", 1)
    assert [(got["role"], got["rank"], got["name"]) for got in status["members"]] == [
        ("server", 0, "s0"), ("server", 1, "s1"), ("worker", 0, "w0"),
    ]  # fmt: skip
    assert [(g["name"], g["how"]) for g in status["gone"]] == [("w1", "finished"), ("w2", "lost")]
    assert status["gone"][1]["last_seen_ago_s"] == pytest.approx(11.0)
    assert [row["shard"] for row in shown["job"]["placement"]] == [0, 1]
    assert decode(encode(message)) == message


@for_each(
    "joined, expected",
    [
        ((), ["waiting for 2 of 2 servers and a worker's init"]),
        (("s0", "w0"), ["waiting for 1 of 2 servers", "job 'default': init waits for 1 of 2 servers to join"]),
    ],
)
def test_the_status_and_the_log_say_whom_the_start_waits_for(joined: tuple[str, ...], expected: list[str]) -> None:
    coordinator = Coordinator.joined(*joined, servers=2)
    if "w0" in joined:
        coordinator.init("w0", job())
    assert coordinator.machine.status(0.0)["waiting"] == expected
    assert "\n".join(expected) in logged(coordinator.wait(5.0, *joined))


def test_log_lines_say_beside_their_text_which_job_peer_and_error_they_are_about() -> None:
    coordinator = Coordinator.joined("s0", "w0", servers=2)
    coordinator.init("w0", job())
    said = [action for action in coordinator.wait(5.0, "s0", "w0") if isinstance(action, Log)]
    assert [(log.text.partition(":")[0], log.job) for log in said] == [
        ("waiting for 1 of 2 servers", ""), ("job 'default'", "default")
    ]  # fmt: skip
    lost = [action for action in coordinator.wait(20.0, "s0") if isinstance(action, Log) and action.error]
    assert [(log.peer, log.job, log.error) for log in lost] == [("w0", "default", "Z006")]
    assert lost[0].about() == {"job": "default", "peer": "w0", "error": "Z006"}
    assert lost[0] == Log("warning", lost[0].text), "compared by what they say"


@for_each(
    "role, changes, code",
    [
        ("worker", {"magic": "other"}, ProtocolError.code),
        ("worker", {"version": 1, "job": ""}, ProtocolVersionError.code),
        ("worker", {"version": m.PROTOCOL_VERSION + 1}, ProtocolVersionError.code),
        ("worker", {"role": "king"}, ProtocolError.code),
        ("worker", {"job": ""}, ProtocolError.code),
        ("observer", {"job": ""}, ProtocolError.code),
        ("worker", {"job": "a\nb"}, ProtocolError.code),
        ("worker", {"job": "x" * 101}, ProtocolError.code),
    ],
)
def test_a_hello_that_is_not_ours_is_refused(role: str, changes: dict[str, Any], code: int) -> None:
    coordinator = Coordinator()
    assert errors(coordinator.take("w0", replace(hello(role, "w0"), **changes))) == [code]
    assert coordinator.machine.runs == {}


def test_a_server_is_there_for_all_jobs_whatever_it_says() -> None:
    coordinator = Coordinator.joined("w0")
    coordinator.take("s0", replace(hello("server", "s0"), job="default"))
    coordinator.init("w0", job())
    coordinator.ready("s0")
    assert receivers(coordinator.take("s0", m.Leave("closed")), m.Lost) == [peer("w0")]
    assert coordinator.run().attendance.num_joined == 1


def test_a_member_stays_in_its_job_whatever_it_says_later() -> None:
    coordinator = Coordinator.joined("w0")
    coordinator.take("w0", hello("worker", "w0", "b"))
    assert set(coordinator.machine.runs) == {"default"}
