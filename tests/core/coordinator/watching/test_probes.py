"""Examinations: who is asked, what becomes of those who are silent, and who may ask for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.tables import for_each
from zmqps.core.coordinator.members.membership import MemberInfo, Membership, Roster
from zmqps.core.coordinator.watching.probes import MOST_EXAMINATIONS, PROBE_S, Probes
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import MAGIC, PROTOCOL_VERSION, Examine, Examined, Hello, Probe, Probed
from zmqps.core.protocol.messages.watching import COORDINATOR_NODE, MAX_STACKS_NBYTES
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import AmbiguousNodeError, JobError, LimitError

ASKER = b"@asker"


class Cluster:
    """Members, and what they are asked."""

    def __init__(self, *names: str) -> None:
        self.membership = Membership(10.0)
        self.servers, self.workers = Roster(), Roster()
        self.probes = Probes(self.membership.members, Wheel())
        self.by_name = {name: self.join(name) for name in names}

    def join(self, name: str) -> MemberInfo:
        job, _, own = name.rpartition("/")
        role = own.partition("-")[0]
        number = len(self.membership.members)
        hello = Hello(
            MAGIC, PROTOCOL_VERSION, role, bytes([number + 1]) * 16, f"{own}-here", "host", 100 + number, "tcp://h:1",
            job=job or "default", secret=b"s" * 16,
        )  # fmt: skip
        roster = self.servers if role == "server" else Roster() if job else self.workers
        return self.membership.join(hello, b"@" + bytes([number]), roster, 0.0)

    def examine(self, node: str = "", request: int = 1, now: float = 1.0, peer: bytes = ASKER) -> list[Action]:
        actions = self.probes.examine(peer, Examine(request, node), now)
        self.probes.validate()
        return actions

    def begin(self) -> int:
        """Examine all; return the number of the examination."""
        return next(iter(probed(self.examine()).values())).number

    def answer(self, name: str, number: int, now: float, lines: Sequence[str] = ()) -> list[Action]:
        actions = self.probes.probed(self.by_name[name], Probed(number, 0, 0.25, tuple(lines)), now)
        self.probes.validate()
        return actions


def probed(actions: list[Action]) -> dict[bytes, Probe]:
    return {a.peer: a.message for a in actions if isinstance(a, Send) and isinstance(a.message, Probe)}


def findings(actions: list[Action]) -> dict[str, object]:
    (send,) = actions
    assert isinstance(send, Send)
    assert send.peer == ASKER
    message = decode([bytes(frame) for frame in encode(send.message)])  # it fits
    assert isinstance(message, Examined)
    return dict(message.findings)


def states(actions: list[Action]) -> dict[str, str]:
    nodes = findings(actions)["nodes"]
    assert isinstance(nodes, list)
    return {node["name"]: node["state"] for node in nodes}


def test_all_are_asked_and_the_answer_comes_when_all_have_answered() -> None:
    cluster = Cluster("server-0", "worker-0")
    asked = probed(cluster.examine())
    assert set(asked) == {member.peer for member in cluster.membership.members.values()}
    (number,) = {probe.number for probe in asked.values()}
    assert cluster.answer("server-0", number, 1.1) == []
    found = findings(cluster.answer("worker-0", number, 1.4))
    slow, quick = found["nodes"]  # type: ignore[misc]
    assert (slow["role"], slow["state"], slow["lag_s"]) == ("worker", "answered", 0.25)  # type: ignore[index]
    assert slow["latency_s"] == pytest.approx(0.4)  # type: ignore[index]
    assert quick["latency_s"] == pytest.approx(0.1)  # type: ignore[index]
    assert cluster.probes.next_deadline() is None


def test_who_is_silent_is_named_first_when_the_time_is_over() -> None:
    cluster = Cluster("server-0", "worker-0")
    number = cluster.begin()
    cluster.answer("server-0", number, 1.1)
    assert cluster.probes.next_deadline() == 1.0 + PROBE_S
    assert cluster.probes.on_deadline(1.0 + PROBE_S - 0.01) == []
    actions = cluster.probes.on_deadline(1.0 + PROBE_S)
    assert list(states(actions).items()) == [("worker-0-here", "silent"), ("server-0-here", "answered")]
    assert cluster.answer("worker-0", number, 3.5) == []  # too late


def test_who_leaves_meanwhile_is_not_called_silent() -> None:
    cluster = Cluster("server-0", "worker-0")
    number = cluster.begin()
    cluster.membership.remove(cluster.by_name["worker-0"], "closed", 1.2)
    cluster.answer("server-0", number, 1.1)
    assert states(cluster.probes.on_deadline(3.0))["worker-0-here"] == "gone"


def test_an_answer_to_an_earlier_examination_counts_for_nothing() -> None:
    cluster = Cluster("worker-0")
    first = cluster.begin()
    cluster.probes.on_deadline(3.0)
    cluster.examine(now=3.0)
    assert cluster.answer("worker-0", first, 3.1) == []
    assert states(cluster.probes.on_deadline(5.0)) == {"worker-0-here": "silent"}


def test_one_that_asks_again_meanwhile_begins_nothing_anew() -> None:
    cluster = Cluster("worker-0")
    cluster.examine()
    assert cluster.examine(now=1.5) == []
    assert probed(cluster.examine(request=2, now=1.5))


def test_a_cluster_without_members_is_well_at_once() -> None:
    assert states(Cluster().examine()) == {}


@for_each(
    "name", ["worker-0", "worker 0", "worker-0-here", "default/worker-0", "default/worker 0", "default/worker-0-here"]
)
def test_one_node_is_asked_for_its_stacks_by_any_of_its_names(name: str) -> None:
    cluster = Cluster("server-0", "worker-0", "worker-1")
    ((peer, probe),) = probed(cluster.examine(name)).items()
    assert (peer, probe.stacks) == (cluster.by_name["worker-0"].peer, 1)
    found = findings(cluster.answer("worker-0", probe.number, 1.1, ["thread MainThread", "  train.py:3 step"]))
    assert found["stacks"] == ["thread MainThread", "  train.py:3 step"]


def test_a_name_that_is_anothers_number_is_refused_with_how_each_is_named() -> None:
    cluster = Cluster("server-0", "server-1")
    cluster.by_name["server-0"].hello = replace(cluster.by_name["server-0"].hello, name="server-1")
    with pytest.raises(
        AmbiguousNodeError, match=r"server 0 \(server-1, host, pid 100\): 'server 0', server 1 \(.*"
    ) as e:
        cluster.examine("server-1")
    assert e.value.number == "Z053"
    for number in (0, 1):
        asked = probed(cluster.examine(f"server {number}", request=2 + number))
        assert set(asked) == {cluster.by_name[f"server-{number}"].peer}


def test_a_name_of_several_jobs_nodes_is_refused_with_those_that_only_one_has() -> None:
    cluster = Cluster("a/worker-0", "b/worker-0")
    with pytest.raises(AmbiguousNodeError, match=r"'worker-0' means several nodes.* 'a/worker 0'.* 'b/worker 0'"):
        cluster.examine("worker-0")
    assert len(probed(cluster.examine("b/worker-0"))) == 1
    assert len(probed(cluster.examine("b/worker 0", request=2))) == 1


def test_a_name_is_known_without_the_host_behind_it() -> None:
    cluster = Cluster("server-0", "server-1")
    cluster.by_name["server-1"].hello = replace(cluster.by_name["server-1"].hello, name="server-1@host-b")
    for request, name in enumerate(("server-1", "server-1@host-b", "server 1"), 1):
        assert set(probed(cluster.examine(name, request))) == {cluster.by_name["server-1"].peer}


def test_a_name_that_nobody_has_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(JobError, match=r"no node 'worker-7'; here are: server-0"):
        Cluster("server-0").examine("worker-7")


def test_the_coordinator_answers_for_itself() -> None:
    (send,) = Cluster("worker-0").examine(COORDINATOR_NODE)
    assert isinstance(send, Send)
    assert isinstance(send.message, Examined)
    assert send.message.own == 1


def test_only_so_many_are_examined_at_a_time() -> None:
    cluster = Cluster("worker-0")
    for request in range(MOST_EXAMINATIONS):
        cluster.examine(request=1 + request)
    with pytest.raises(LimitError, match="examinations at a time"):
        cluster.examine(request=100)
    cluster.probes.on_deadline(1.0 + PROBE_S)
    assert probed(cluster.examine(request=100, now=3.0))


def test_what_a_process_says_of_itself_is_cut_off_where_it_is_too_much() -> None:
    cluster = Cluster("worker-0")
    number = next(iter(probed(cluster.examine("worker-0")).values())).number
    found = findings(cluster.answer("worker-0", number, 1.1, ["ü" * 4000] * 50))
    lines = found["stacks"]
    assert isinstance(lines, list)
    assert 0 < sum(len(line.encode()) + 1 for line in lines) <= MAX_STACKS_NBYTES
