"""How what a script logs comes to the coordinator: one message at a time, until it is confirmed."""

from __future__ import annotations

from tests.core.machines import exits_of, resolved, sent
from tests.core.worker.test_session import WELCOME, Session
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Connected, Disconnected, Send, Stop
from zmqps.core.worker.notes import LAST_S, PAUSE_S, RETRY_S
from zmqps.core.worker.operations import Finish


class Logging(Session):
    """A session that has joined, and its script."""

    def __init__(self, *logged: int) -> None:
        """``logged``: how often, before each of the first heartbeats."""
        super().__init__()
        self.get(WELCOME)
        self.num_logged = 0
        for times in logged:
            self.log(times)
            self.beat()

    def log(self, times: int = 1) -> None:
        for _ in range(times):
            self.machine.notes.notebook.add(self.now, {"x": float(self.num_logged)})
            self.num_logged += 1

    def beat(self) -> list[Action]:
        """Pass to the next heartbeat, which is answered."""
        actions = self.wait(self.now + 1.0)
        self.get(m.HeartbeatAck(4))
        return actions


def numbers(actions: list[Action]) -> list[list[float]]:
    return [[values["x"] for _, _, values in note.entries] for note in sent(actions, m.Note)]


def test_what_is_logged_leaves_with_the_next_heartbeat_and_while_more_is_twice_a_second() -> None:
    session = Logging()
    session.log(3)
    actions = session.wait(1.0)
    assert numbers(actions) == [[0.0, 1.0, 2.0]]
    assert [age for age, _, _ in sent(actions, m.Note)[0].entries] == [1.0, 1.0, 1.0]
    session.get(m.Noted(3))
    session.log()
    assert numbers(session.wait(1.0 + PAUSE_S)) == [[3.0]]
    session.get(m.Noted(4))
    session.get(m.HeartbeatAck(4))
    actions = session.wait(1.9)
    assert session.machine.notes.due is None or session.machine.notes.due > 1.9, "no more than heartbeats then"
    assert actions == []


def test_one_message_is_on_its_way_at_a_time_and_comes_again_until_it_is_confirmed() -> None:
    session = Logging(1)
    session.log()
    actions = [action for _ in range(3) for action in session.beat()]
    assert numbers(actions) == [[0.0]], f"after {RETRY_S} s once more"
    session.get(m.Noted(1))
    assert numbers(session.beat()) == [[1.0]]


def test_an_answer_that_comes_twice_changes_nothing() -> None:
    session = Logging(1)
    session.get(m.Noted(1))
    session.log()
    assert numbers(session.beat()) == [[1.0]]
    assert session.get(m.Noted(1)) == []
    assert len(session.machine.notes.notebook) == 1


def test_over_a_new_connection_it_is_sent_again_at_once() -> None:
    session = Logging(1)
    session.handle(Disconnected(COORDINATOR))
    assert numbers(session.handle(Connected(COORDINATOR))) == [[0.0]]


def test_nothing_is_sent_before_the_coordinator_knows_who_this_is() -> None:
    session = Session()
    session.machine.notes.notebook.add(0.0, {"x": 0.0})
    assert numbers(session.wait(3.0)) == []
    session.get(WELCOME)
    assert numbers(session.wait(4.5)) == [[0.0]]


def test_a_worker_that_finishes_waits_until_all_is_confirmed() -> None:
    session = Logging()
    session.log(2)
    finish = Finish(0.0)
    actions = session.ask(finish)
    assert numbers(actions) == [[0.0, 1.0]]
    assert sent(actions, m.Leave) == []
    actions = session.get(m.Noted(2))
    assert [leave.reason for leave in sent(actions, m.Leave)] == ["finished"]
    assert resolved(session.get(m.Left())) == [(finish, None)]


def test_a_worker_that_finishes_does_not_wait_for_long() -> None:
    session = Logging()
    session.log(2)
    session.ask(Finish(0.0), timeout=60.0)
    actions = session.wait(LAST_S + 0.01)
    assert len(sent(actions, m.Leave)) == 1
    before = actions[: next(i for i, a in enumerate(actions) if isinstance(a, Send) and isinstance(a.message, m.Leave))]
    assert numbers(before) == [[0.0, 1.0]], "once more, ahead of the goodbye"


def test_a_worker_that_is_closed_sends_the_rest_ahead_of_its_goodbye() -> None:
    session = Logging(1)
    session.log(2)
    actions = session.handle(Stop("closed"))
    kinds = [type(action.message) for action in actions if isinstance(action, Send)]
    assert kinds == [m.Note, m.Heartbeat, m.Leave]
    assert numbers(actions) == [[0.0, 1.0, 2.0]]
    assert exits_of(session.get(m.Left())) == [0]


def test_the_statistics_and_the_heartbeats_say_how_much_is_logged_and_lost() -> None:
    session = Logging()
    assert "logged" not in sent(session.beat(), m.Heartbeat)[0].counters
    session.log(2000)
    statistics = session.machine.statistics()
    assert (statistics.logged, statistics.log_dropped) == (2000, 976)
    counters = sent(session.beat(), m.Heartbeat)[0].counters
    assert (counters["logged"], counters["log_dropped"]) == (2000, 976)


@for_each("upto", [0, 5, 1 << 60])
def test_whatever_the_coordinator_confirms_nothing_breaks(upto: int) -> None:
    session = Logging()
    session.get(m.Noted(upto))
    session.log(3)
    session.beat()
    session.get(m.Noted(upto))
    session.log()
    session.beat()
