"""The leader of a host group: what makes a round, who waits for whom, and what is done alone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tables import for_each
from zmqps.combine.group import TELL_S, GroupMachine
from zmqps.combine.messages import (
    Alive,
    Alone,
    Away,
    CloseConnection,
    ConnectionEnded,
    Done,
    Dropped,
    Failed,
    Fetched,
    FetchValues,
    Got,
    Heard,
    Here,
    HostAction,
    HostGradients,
    HostMessage,
    HostValues,
    HostWaiting,
    Joined,
    JoinGroup,
    Pushing,
    PushRound,
    Rewound,
    RoundPushed,
    Say,
    Tell,
    Want,
)
from zmqps.errors import DeadlineError

INTERVAL, TIMEOUT = 1.0, 5.0


class Group:
    """A machine with members 1, its own, to ``size``."""

    def __init__(self, size: int = 3, mode: str = "sync", step: int = 0) -> None:
        self.machine = GroupMachine("worker 1", mode, step, INTERVAL, TIMEOUT, 0.0)
        self.now = 0.0
        for number in range(1, size + 1):
            [joined] = self.say(number, JoinGroup(f"worker {number}", number, step))
            assert joined == Tell(number, Joined("worker 1", step, INTERVAL, TIMEOUT))

    def say(self, number: int, message: HostMessage) -> list[HostAction]:
        return self.happen(Heard(number, message))

    def bring(self, number: int, step: int = 0) -> list[HostAction]:
        return self.say(number, HostGradients(step=step, places=[], counts=[]))

    def happen(self, event: object) -> list[HostAction]:
        actions = self.machine.handle(event, self.now)  # type: ignore[arg-type]
        self.machine.validate()
        return actions

    def until(self, now: float, alive: Sequence[int] = ()) -> list[HostAction]:
        """Let time pass, in which some members say that they live."""
        actions: list[HostAction] = []
        while self.machine.next_deadline() <= now:
            self.now = self.machine.next_deadline()
            for number in alive:
                self.say(number, Alive())
            actions += self.machine.on_deadline(self.now)
            self.machine.validate()
        self.now = now
        return actions


def told(actions: Sequence[HostAction]) -> dict[int, HostMessage]:
    return {action.member: action.message for action in actions if isinstance(action, Tell)}


def test_a_round_is_pushed_when_all_have_brought_to_it_and_answered_when_it_is_acknowledged() -> None:
    group = Group()
    assert group.bring(2) == []
    assert group.bring(1) == []
    *pushing, push = group.bring(3)
    assert told(pushing) == {1: Pushing(0), 2: Pushing(0), 3: Pushing(0)}
    assert isinstance(push, PushRound)
    assert sorted(push.brought) == [1, 2, 3]
    assert told(group.happen(RoundPushed())) == {1: Done(0), 2: Done(0), 3: Done(0)}
    assert group.bring(1, 1) == []


def test_a_round_does_not_wait_for_who_has_gone_or_is_away() -> None:
    group = Group()
    group.bring(1)
    group.happen(ConnectionEnded(2))
    push = group.say(3, Away())[-1]
    assert isinstance(push, PushRound)
    assert sorted(push.brought) == [1]
    group.happen(RoundPushed())
    group.say(3, Here(1))
    assert group.bring(1, 1) == []
    assert isinstance(group.bring(3, 1)[-1], PushRound)


def test_who_comes_when_its_step_is_over_pushes_alone() -> None:
    group = Group(2)
    group.bring(1)
    group.bring(2)
    group.happen(RoundPushed())
    group.say(3, JoinGroup("worker 3", 3, 0))
    assert group.bring(3, 0) == [Tell(3, Alone(reads=False))]
    assert group.bring(1, 1) == []
    assert group.bring(2, 1) == []
    assert isinstance(group.bring(3, 1)[-1], PushRound)


def test_nobody_is_pushed_for_while_the_leader_is_away() -> None:
    group = Group(2)
    group.bring(2)
    assert group.say(1, Away()) == [Tell(2, Alone(reads=False))]
    assert group.bring(2, 1) == [Tell(2, Alone(reads=False))]


def test_what_a_push_fails_with_all_are_told_and_may_bring_again() -> None:
    group = Group(2)
    group.bring(1)
    group.bring(2)
    error = DeadlineError(operation="push", seconds=1.0, waiting_for="server-0")
    answers = told(group.happen(RoundPushed(error)))
    assert all(isinstance(answer, Failed) and answer.code == error.code for answer in answers.values())
    assert group.bring(1) == []
    assert isinstance(group.bring(2)[-1], PushRound)


def test_who_waits_is_told_for_whom_after_a_while() -> None:
    group = Group(3)
    group.bring(1)
    actions = group.until(TELL_S + 0.1, alive=[1, 2, 3])
    waiting = told(actions)[1]
    assert isinstance(waiting, HostWaiting)
    assert waiting.text == (
        "worker 2, worker 3: step 0 has the gradients of 1 worker of this host, 2 live workers are awaited"
    )
    assert any(isinstance(action, Say) and waiting.text in action.text for action in actions)


def test_who_is_silent_for_the_heartbeat_timeout_is_dropped_and_the_others_go_on() -> None:
    group = Group(3)
    group.bring(1)
    group.bring(3)
    actions = group.until(TIMEOUT + 2 * INTERVAL, alive=[1, 3])
    assert isinstance(told(actions)[2], Dropped)
    assert CloseConnection(2) in actions
    [said] = [action.text for action in actions if isinstance(action, Say) and action.level == "warning"]
    assert "lost worker 2 of this host: last sign of life" in said
    assert any(isinstance(action, PushRound) and sorted(action.brought) == [1, 3] for action in actions)


def test_a_step_is_read_once_in_the_synchronous_mode() -> None:
    group = Group(3)
    [fetch] = group.say(1, Want(0))
    assert fetch == FetchValues(1, 0, 0)
    assert group.say(2, Want(0)) == []
    assert told(group.happen(Fetched(1, 0, 0))) == {1: HostValues(1, 0, []), 2: HostValues(1, 0, [])}
    assert group.say(3, Want(0)) == [Tell(3, HostValues(1, 0, []))]
    assert group.say(3, Want(0)) == [Tell(3, HostValues(1, 0, []))]


def test_who_has_read_values_asks_for_newer_ones_in_the_other_modes() -> None:
    group = Group(2, mode="async")
    group.say(1, Want(0))
    group.happen(Fetched(1, 0, 7))
    assert group.say(2, Want(0)) == [Tell(2, HostValues(1, 7, []))]
    assert group.say(2, Want(0)) == [FetchValues(2, 1, 0)]


def test_who_joins_reads_nothing_that_may_be_older_than_what_it_knows() -> None:
    group = Group(1, mode="async")
    group.say(1, Want(0))
    group.happen(Fetched(1, 0, 7))
    group.say(2, JoinGroup("worker 2", 2, 0))
    assert group.say(2, Want(0)) == [FetchValues(2, 1, 0)]


def test_memory_that_somebody_reads_is_not_written_to() -> None:
    group = Group(2, mode="async")
    for number in (1, 2):
        assert group.say(1, Want(0)) == [FetchValues(number, number - 1, 0)]
        group.happen(Fetched(number, 0, 0))
    assert group.say(2, Want(0)) == [Tell(2, HostValues(2, 0, []))]
    assert group.say(1, Want(0)) == [Tell(1, Alone(reads=True))]
    group.say(1, Got(1))
    assert group.say(1, Want(0)) == [FetchValues(3, 0, 0)]


def test_values_of_another_step_are_not_given_out() -> None:
    group = Group(2)
    group.say(2, Want(3))
    assert told(group.happen(Fetched(1, 2, 2))) == {2: Alone(reads=True)}


def test_a_read_of_a_step_that_the_leader_has_left_does_not_wait_for_the_leaders() -> None:
    group = Group(2, step=4)
    assert group.say(1, Want(4)) == [FetchValues(1, 0, 4)]
    assert group.say(2, Want(3)) == [Tell(2, Alone(reads=True))]


def test_a_read_never_waits_for_a_fetch_that_may_wait_for_the_reader() -> None:
    group = Group(3, step=1)
    assert group.say(2, Want(2)) == [FetchValues(1, 0, 2)], "the leader may be at a later step than its group"
    assert group.say(3, Want(1)) == [Tell(3, Alone(reads=True))]
    assert told(group.happen(Fetched(1, -1))) == {2: Alone(reads=True)}


def test_after_the_job_has_gone_back_values_are_read_again() -> None:
    group = Group(1)
    group.say(1, Want(0))
    group.happen(Fetched(1, 0, 0))
    group.say(1, Got(1))
    group.happen(Rewound())
    assert group.say(1, Want(0)) == [FetchValues(2, 1, 0)]


@for_each("message", [Done(0), Alone(reads=True)])
def test_a_member_that_says_what_only_leaders_say_is_dropped(message: HostMessage) -> None:
    group = Group(2)
    assert CloseConnection(2) in group.say(2, message)
