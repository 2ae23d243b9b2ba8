"""What scripts log, at the coordinator: taken once, in order, and counted where it is lost."""

from __future__ import annotations

from typing import Any

from tests.core.coordinator.kept import Kept
from tests.core.machines import Coordinator, errors, sent
from tests.tables import for_each
from zmqps.core.coordinator.watching.notes import BURST, Logged
from zmqps.core.protocol.events import Action, Notify
from zmqps.core.protocol.messages import Hello, Leave, Note, Noted
from zmqps.core.protocol.messages.notes import MAX_STEP
from zmqps.errors import IdentityError, NotJoinedError, ProtocolError


def note(first: int, *numbers: float, age: float = 0.0) -> Note:
    return Note(first, tuple((age, None, {"x": float(number)}) for number in numbers))


def told(actions: list[Action]) -> list[Logged]:
    return [action.event for action in actions if isinstance(action, Notify)]


def taken(actions: list[Action]) -> list[float]:
    return [values["x"] for event in told(actions) for _, _, values in event.entries]


def upto(actions: list[Action]) -> list[int]:
    return [message.upto for message in sent(actions, Noted)]


class History:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def note(self, *call: Any) -> None:
        self.calls.append(call)


def test_what_a_worker_logs_is_told_with_its_time_and_confirmed() -> None:
    coordinator = Coordinator.joined("s0", "w0", "w1")
    coordinator.now = 50.0
    coordinator.join("w1")
    actions = coordinator.take("w1", Note(0, ((2.0, 7, {"loss": 0.5}), (1.5, None, {"loss": 0.25, "lr": 0.1}))))
    assert upto(actions) == [2]
    [event] = told(actions)
    assert (event.job, event.node, event.dropped) == ("default", "worker 1", 0)
    assert event.entries == ((48.0, 7, {"loss": 0.5}), (48.5, None, {"loss": 0.25, "lr": 0.1}))


def test_the_history_gets_each_value() -> None:
    coordinator, history = Coordinator(), History()
    coordinator.machine.notes.history = history
    coordinator.join("w0.other")
    coordinator.now = 10.0
    coordinator.join("w0.other")
    coordinator.take("w0.other", Note(0, ((2.0, 7, {"loss": 0.5, "accuracy": 0.25}),)))
    assert history.calls == [
        ("other", "worker 0", "loss", 8.0, 7, 0.5),
        ("other", "worker 0", "accuracy", 8.0, 7, 0.25),
    ]


def test_what_is_logged_is_in_the_history_that_others_are_shown() -> None:
    coordinator = Coordinator.joined("w0")
    coordinator.take("w0", note(0, 1, 2))
    [key] = coordinator.machine.watching.history.series
    assert (key.job, key.node, key.name, key.kind) == ("default", "worker 0", "x", "value")


def test_what_comes_again_is_confirmed_again_and_not_taken() -> None:
    coordinator = Coordinator.joined("w0")
    assert taken(coordinator.take("w0", note(0, 0, 1))) == [0.0, 1.0]
    actions = coordinator.take("w0", note(0, 0, 1))
    assert (told(actions), upto(actions)) == ([], [2])


def test_of_a_message_that_is_known_in_part_the_rest_is_taken() -> None:
    coordinator = Coordinator.joined("w0")
    coordinator.take("w0", note(0, 0, 1))
    actions = coordinator.take("w0", note(1, 1, 2, 3))
    assert (taken(actions), upto(actions)) == ([2.0, 3.0], [4])


def test_what_is_missing_is_counted() -> None:
    coordinator = Coordinator.joined("w0")
    coordinator.take("w0", note(0, 0))
    actions = coordinator.take("w0", note(5, 5))
    assert [event.dropped for event in told(actions)] == [4]
    assert (coordinator.machine.notes.num_taken, coordinator.machine.notes.num_lost) == (2, 4)


def test_members_are_counted_apart_and_a_new_life_begins_anew() -> None:
    coordinator = Coordinator.joined("w0", "w1", "o0")
    for name in ("w0", "w1", "o0"):
        assert taken(coordinator.take(name, note(0, 0))) == [0.0]
    coordinator.take("w0", Leave("closed"))
    coordinator.join("w2")
    actions = coordinator.take("w2", note(0, 0))
    assert [(event.node, event.dropped) for event in told(actions)] == [("worker 0", 0)]


def test_servers_and_strangers_log_nothing() -> None:
    coordinator = Coordinator.joined("s0")
    assert errors(coordinator.take("s0", note(0, 0))) == [IdentityError.code]
    assert errors(coordinator.take("w9", note(0, 0))) == [NotJoinedError.code]


def test_who_sends_too_often_is_not_answered_for_a_while_and_loses_nothing() -> None:
    coordinator = Coordinator.joined("w0", "w1")
    answers = [upto(coordinator.take("w0", note(number, number))) for number in range(3 * BURST)]
    assert answers == [[number + 1] for number in range(BURST)] + [[]] * (2 * BURST)
    assert upto(coordinator.take("w1", note(0, 0))) == [1], "others are not meant"
    coordinator.now += 1.0
    actions = coordinator.take("w0", note(BURST, 0, 1))
    assert [event.dropped for event in told(actions)] == [0]


def test_a_coordinator_that_comes_back_from_its_journal_takes_nothing_twice() -> None:
    kept = Kept.joined("s0", "w0")
    kept.take("w0", note(0, 0, 1, 2))
    kept.back()
    assert told(kept.come_back("w0")) == []
    actions = kept.take("w0", note(1, 1, 2, 3))
    assert (taken(actions), upto(actions)) == ([3.0], [4])
    kept.take("w0", Leave("finished"))
    assert not [key for key in kept.journal if key.startswith("noted")]


def test_a_connection_that_has_not_said_who_it_is_again_is_asked_first() -> None:
    kept = Kept.joined("s0", "w0")
    kept.back()
    assert told(kept.take("w0", note(0, 0))) == []
    assert sent(kept.take("w0", note(0, 0)), Hello) == []
    kept.come_back("w0")
    assert taken(kept.take("w0", note(0, 0))) == [0.0]


@for_each("first", [1 << 62, MAX_STEP - 1, MAX_STEP, (1 << 64) - 1])
def test_numbers_of_any_size_do_no_harm(first: int) -> None:
    kept = Kept.joined("w0")
    actions = kept.take("w0", note(first, 1))
    assert upto(actions) == [first + 1] if first < MAX_STEP else errors(actions) == [ProtocolError.code]
