"""Named barriers, by identity."""

from __future__ import annotations

import pytest

from tests.core.machines import hello, peer, sent
from tests.tables import for_each
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.training.barrier import MAX_BARRIERS, MOST_LOOKED_AT, Barriers
from zmqps.core.coordinator.training.waits import not_joined
from zmqps.core.protocol.messages import Enter, Error, Released, Waiting
from zmqps.core.protocol.messages.hello import MAX_NAME_CHARS
from zmqps.errors import LimitError, PeerLostError, ProtocolError

CLOCK = 7


class Hall:
    """Barriers of some workers; those that are paused, with their reasons."""

    def __init__(self, *names: str) -> None:
        rosters = {"worker": Roster(), "observer": Roster()}
        members = [make_member(name, rosters) for name in names]
        self.members = {member.incarnation: member for member in members}
        self.paused: set[tuple[str, str]] = set()
        self.barriers = Barriers(self.members, lambda: rosters["worker"], self.pause, self.resume)

    def pause(self, member: MemberInfo, reason: str) -> None:
        self.paused.add((member.hello.name, reason))

    def resume(self, member: MemberInfo, reason: str) -> int:
        self.paused.remove((member.hello.name, reason))
        return CLOCK

    def find(self, name: str) -> MemberInfo:
        return self.members[hello("worker", name).incarnation]

    def enter(self, name: str, barrier: str = "x", request: int = 1, missing: int = 0) -> list[str | int]:
        """Return what is answered: the words of a `Waiting`, the requests that are released."""
        actions = self.barriers.enter(self.find(name), Enter(request, barrier), missing)
        actions += self.barriers.release(missing)
        self.barriers.validate()
        assert {step for step in (m.step for m in sent(actions, Released))} <= {CLOCK}
        return [m.text for m in sent(actions, Waiting)] + [m.request for m in sent(actions, Released)]

    @property
    def waiters(self) -> dict[str, list[str]]:
        return {
            name: [self.members[who].hello.name for who in barrier.waiters]
            for name, barrier in self.barriers.by_name.items()
        }


def make_member(name: str, rosters: dict[str, Roster]) -> MemberInfo:
    role = "observer" if name[0] == "o" else "worker"
    return rosters[role].enter(hello(role, name), peer(name), 0.0)


def test_who_has_not_entered_is_awaited_in_the_order_of_ranks() -> None:
    hall = Hall("a", "b", "c")
    assert hall.enter("b") == ["worker 0 (a, host, pid 7), worker 2 (c, host, pid 7)"]
    assert hall.enter("c") == ["worker 0 (a, host, pid 7)"]
    assert hall.enter("a") == [1, 1, 1]
    assert hall.waiters == {}


def test_observers_are_not_awaited_and_those_to_come_are() -> None:
    hall = Hall("a", "o")
    assert hall.enter("a", missing=2) == [not_joined(2, 1)]
    assert len(sent(hall.barriers.release(0), Released)) == 1


def test_of_many_who_are_awaited_some_are_named() -> None:
    hall = Hall(*(f"w{number}" for number in range(12)))
    (text,) = hall.enter("w0")
    assert str(text).count("pid 7") == 8
    assert str(text).endswith(" and 3 more")


def test_entering_twice_counts_once_and_the_last_request_is_answered() -> None:
    hall = Hall("a", "b")
    hall.enter("a", request=1)
    hall.enter("a", request=2)
    assert hall.enter("b", request=3) == [2, 3]


def test_a_barrier_can_be_used_again() -> None:
    hall = Hall("a", "b")
    for _ in range(2):
        assert hall.enter("a") == ["worker 1 (b, host, pid 7)"]
        assert hall.enter("b") == [1, 1]


def test_who_waits_is_paused_until_it_waits_no_more() -> None:
    hall = Hall("a", "b")
    hall.enter("a", "x")
    hall.enter("a", "y", request=2)
    assert hall.paused == {("a", "barrier 'x'"), ("a", "barrier 'y'")}
    hall.enter("b", "x")
    assert hall.paused == {("a", "barrier 'y'")}
    hall.barriers.withdraw(hall.find("a"))
    assert hall.paused == set()


@for_each(
    "name, request_, left",
    [
        ("a", None, {"x": ["b"]}),
        ("a", 1, {"x": ["b"], "y": ["a"]}),
        ("a", 9, {"x": ["a", "b"], "y": ["a"]}),
        ("c", None, {"x": ["a", "b"], "y": ["a"]}),
    ],
)
def test_who_withdraws_no_longer_waits(name: str, request_: int | None, left: dict[str, list[str]]) -> None:
    hall = Hall("a", "b", "c")
    hall.enter("a", "x")
    hall.enter("b", "x")
    hall.enter("a", "y", request=2)
    hall.barriers.withdraw(hall.find(name), request_)
    assert hall.waiters == left
    hall.barriers.validate()


def test_the_loss_of_a_worker_fails_those_who_wait_for_it_and_pauses_nobody_any_more() -> None:
    hall = Hall("a", "b", "c")
    hall.enter("a", "x")
    hall.enter("b", "x")
    hall.enter("c", "y")
    error = PeerLostError(role="worker", name="c", silent_s=10.0, advice="go on")
    actions = hall.barriers.lose(hall.find("c"), error)
    assert [message.code for message in sent(actions, Error)] == [PeerLostError.code] * 2
    assert hall.waiters == {"y": ["c"]}
    assert {name for name, _ in hall.paused} == {"c"}


def test_the_number_of_barriers_is_bounded() -> None:
    hall = Hall("a", "b")
    for number in range(MAX_BARRIERS):
        hall.enter("a", str(number), request=number)
    with pytest.raises(LimitError):
        hall.enter("a", "one more")
    hall.enter("b", "0")
    assert hall.enter("b", "of its own")[0] == "worker 0 (a, host, pid 7)", "b may wait at as many"
    hall.barriers.withdraw(hall.find("a"), 3)
    hall.enter("a", "one more")


def test_a_barrier_whose_name_is_too_long_is_refused() -> None:
    hall = Hall("a", "b")
    hall.enter("a", "x" * MAX_NAME_CHARS)
    with pytest.raises(LimitError):
        hall.enter("a", "x" * (MAX_NAME_CHARS + 1))
    assert len(hall.waiters) == 1


@for_each("name", ["a\nb", "\x1b[2J", "\u202e"])
def test_a_barrier_whose_name_cannot_be_shown_is_refused(name: str) -> None:
    hall = Hall("a", "b")
    with pytest.raises(ProtocolError, match="a barrier's name has printable characters only"):
        hall.enter("a", name)
    assert hall.waiters == {}
    assert hall.paused == set()


def test_of_very_many_who_are_awaited_the_number_is_told_at_once_and_names_soon() -> None:
    names = [f"w{number}" for number in range(MOST_LOOKED_AT + 9)]
    hall = Hall(*names)
    for name in names[:MOST_LOOKED_AT]:
        text = hall.enter(name)[0]
    assert text == "9 workers"
    told = {say() for _, _, say in hall.barriers.waiters(0)}
    assert len(told) == 1
    assert told.pop().startswith(f"worker {MOST_LOOKED_AT} (w{MOST_LOOKED_AT}, ")
