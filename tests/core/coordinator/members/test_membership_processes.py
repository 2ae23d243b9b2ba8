"""Processes whose ends are told by their supervisors: who is lost with one, who is not, and who may say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.coordinator.kept import Kept
from tests.core.machines import Coordinator, errors, hello, logged, peer, receivers, sent
from tests.tables import for_each
from zmqps.core.coordinator.members.membership import MAX_ENDED, Processes
from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages import Departed, Enter, Exited, ExitNoted, Heartbeat, Leave, Released, Welcome
from zmqps.core.protocol.messages.hello import MAX_NAME_CHARS
from zmqps.core.protocol.security.keys import process_of
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.errors import EvictedError, LimitError, PeerLostError, ProtocolError

TOKEN, OTHER = b"token of process", b"of another's one"
SUPERVISOR = "supervisor"


class Cluster(Coordinator):
    """A coordinator whose members may live in processes that a supervisor has started."""

    def come(self, name: str, token: bytes = b"", role: str = "worker") -> list:  # type: ignore[type-arg]
        return self.take(name, replace(hello(role, name), process=process_of(token)))

    def exited(self, token: bytes, how: str = "signal SIGKILL") -> list:  # type: ignore[type-arg]
        return self.take(SUPERVISOR, Exited(7, token, how))

    @property
    def names(self) -> set[str]:
        return {member.hello.name for member in self.machine.membership.members.values()}


def test_whoever_lives_in_a_process_that_has_ended_is_lost_at_once_by_the_way_of_missed_heartbeats() -> None:
    cluster = Cluster.joined("s0", "w0")
    cluster.come("w1", TOKEN)
    cluster.come("w2", TOKEN)
    cluster.take("w0", Enter(5, "end"))
    actions = cluster.exited(TOKEN)
    assert cluster.names == {"s0", "w0"}
    (noted,) = sent(actions, ExitNoted, peer(SUPERVISOR))
    assert noted.request == 7
    assert [title.partition(" (")[0] for title in noted.lost] == ["worker 1", "worker 2"]
    assert errors(actions, peer("w0")) == [PeerLostError.code]  # who waits for them is told
    assert "worker 1 (w1, host, pid 7) has ended (signal SIGKILL), says its supervisor" in logged(actions)
    assert [d.how for d in cluster.machine.membership.gone] == ["lost", "lost"]
    assert errors(cluster.take("w1", Heartbeat({}))) == [EvictedError.code]


def test_a_server_whose_process_has_ended_is_lost_too() -> None:
    cluster = Cluster(servers=2)
    cluster.come("s0", TOKEN, "server")
    cluster.come("s1", OTHER, "server")
    cluster.exited(TOKEN)
    assert cluster.names == {"s1"}


def test_a_report_changes_nothing_for_the_next_life_of_whoever_has_ended() -> None:
    cluster = Cluster.joined("s0")
    cluster.come("w0", TOKEN)
    cluster.exited(TOKEN)
    again = replace(hello("worker", "w0"), incarnation=b"the next life...", process=process_of(OTHER))
    assert sent(cluster.take("again", again), Welcome)
    assert sent(cluster.exited(TOKEN), ExitNoted) == [ExitNoted(7)]
    assert cluster.names == {"s0", "w0"}


def test_a_hello_that_comes_behind_the_report_of_its_end_is_refused() -> None:
    cluster = Cluster()
    cluster.exited(TOKEN)
    assert errors(cluster.come("w0", TOKEN)) == [EvictedError.code]
    assert cluster.names == set()


def test_who_has_said_goodbye_is_not_lost_by_the_end_of_its_process() -> None:
    cluster = Cluster()
    cluster.come("w0", TOKEN)
    cluster.take("w0", Leave("finished"))
    assert sent(cluster.exited(TOKEN), ExitNoted) == [ExitNoted(7)]
    assert [d.how for d in cluster.machine.membership.gone] == ["finished"]


def test_a_barrier_that_the_lost_one_had_entered_is_released() -> None:
    cluster = Cluster.joined("s0", "w0", workers=2)
    cluster.come("w1", TOKEN)
    cluster.take("w1", Enter(5, "end"))
    cluster.exited(TOKEN)
    assert cluster.names == {"s0", "w0"}
    assert receivers(cluster.take("w0", Enter(5, "end")), Released) == [peer("w0")]


@for_each("holder", [None, KeyHolder("worker", "mallory"), KeyHolder("observer", "spy")])
def test_nobody_ends_a_process_without_its_token_whatever_key_they_have(holder: KeyHolder | None) -> None:
    cluster = Cluster()
    cluster.come("s0", TOKEN, "server")
    (member,) = cluster.machine.membership.members.values()
    known = (member.hello.process, member.incarnation, OTHER)  # what others may learn, or guess
    for token in known:
        actions = cluster.handle(Received(peer("stranger"), Exited(7, token, "killed"), holder=holder))
        assert sent(actions, ExitNoted) == [ExitNoted(7)]
        assert not sent(actions, Departed)
    assert cluster.names == {"s0"}


def test_a_member_of_no_known_process_is_ended_by_no_report() -> None:
    cluster = Cluster.joined("s0", "w0")
    assert errors(cluster.exited(b"")) == [ProtocolError.code]
    assert cluster.names == {"s0", "w0"}
    assert sent(cluster.take("w1", hello("worker", "w1")), Welcome)


@for_each("how, code", [("x" * (MAX_NAME_CHARS + 1), LimitError.code), ("a\nb", ProtocolError.code)])
def test_how_it_ended_is_short_and_can_be_shown(how: str, code: int) -> None:
    cluster = Cluster()
    cluster.come("w0", TOKEN)
    assert errors(cluster.exited(TOKEN, how)) == [code]
    assert cluster.names == {"w0"}


def test_what_the_coordinators_own_process_has_seen_is_answered_to_nobody() -> None:
    cluster = Cluster()
    cluster.come("w0", TOKEN)
    assert not sent(cluster.take(SUPERVISOR, Exited(0, TOKEN)), ExitNoted)
    assert cluster.names == set()


def test_a_coordinator_that_is_back_knows_in_which_process_each_member_lives() -> None:
    kept = Kept(servers=1)
    kept.take("w0", replace(hello("worker", "w0"), process=process_of(TOKEN)))
    kept.back()
    kept.take(SUPERVISOR, Exited(7, TOKEN, "signal SIGKILL"))
    assert not kept.machine.membership.members


def test_of_processes_that_have_ended_a_bounded_number_is_remembered() -> None:
    processes: Processes = Processes()
    for number in range(MAX_ENDED + 1):
        assert processes.end(number.to_bytes(16, "little")) == []
    processes.validate({})
    processes.check(replace(hello("worker"), process=bytes(16)))  # forgotten
    with pytest.raises(EvictedError, match="has ended, says its supervisor"):
        processes.check(replace(hello("worker"), process=(1).to_bytes(16, "little")))
