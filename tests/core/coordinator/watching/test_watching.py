"""What those see who watch a cluster: figures, events, and for whom a step waits."""

from __future__ import annotations

from typing import Any

from tests.core.coordinator.training.test_steps import Cluster
from tests.core.machines import Coordinator, errors, sent
from tests.tables import for_each
from zmqps.core.coordinator.watching.watching import MAX_EVENT_CHARS, MAX_EVENTS, Watching
from zmqps.core.protocol.events import Log
from zmqps.core.protocol.figures import BOUNDS
from zmqps.core.protocol.messages import Heartbeat, Status, Watch
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import LimitError


def view(cluster: Coordinator, **asked: Any) -> dict[str, Any]:
    options = {"span": 1000.0, "points": 2000, **asked}
    (watched,) = sent(cluster.take("x", Watch(1, **options)), Status)
    assert decode(encode(watched), lambda: 0) == watched
    return watched.status


def series(cluster: Coordinator, node: str, name: str) -> list[list[Any]]:
    found = [s for s in view(cluster)["series"] if (s["node"], s["name"]) == (node, name)]
    return found[0]["points"] if found else []


def counters(awake_seconds: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"rss_nbytes": 1 << 20, "cpu_seconds": 0.0, "awake_seconds": awake_seconds, **more}


def steps(total: float, number: int) -> list[float]:
    return [total, number, *[0] * len(BOUNDS["step_seconds"])]


def test_rates_are_what_a_member_has_counted_between_two_heartbeats() -> None:
    cluster = Cluster("s0", "w0")
    cluster.now = 10.0
    cluster.take("w0", Heartbeat(counters(3.0, bytes_sent=1000, cpu_seconds=1.0, step_seconds=steps(2.0, 4))))
    cluster.now = 12.0
    cluster.take("w0", Heartbeat(counters(5.0, bytes_sent=5000, cpu_seconds=2.0, step_seconds=steps(3.0, 6))))
    assert series(cluster, "worker 0", "bytes_sent_per_second") == [[12.0, 2000.0, 2000.0, 2000.0, None]]
    assert series(cluster, "worker 0", "cpu") == [[12.0, 0.5, 0.5, 0.5, None]]
    assert series(cluster, "worker 0", "step_seconds") == [[12.0, 0.5, 0.5, 0.5, None]]
    assert [point[1] for point in series(cluster, "worker 0", "rss_nbytes")] == [1 << 20, 1 << 20]


def test_rates_are_by_the_clock_of_those_that_count_where_the_coordinator_has_slept() -> None:
    cluster = Cluster("s0", "w0", mode="async")
    for second in range(20):
        cluster.now += 1.0 if second not in range(5, 15) else 0.001  # these wait in its socket
        cluster.take("w0", Heartbeat(counters(float(second), bytes_sent=100 * second, pushes=8 * second)))
    for node, name, rate in (("worker 0", "bytes_sent_per_second", 100.0), ("", "steps_per_second", 8.0)):
        points = series(cluster, node, name)
        assert points
        assert {(mean, least, most) for _, mean, least, most, _ in points} == {(rate, rate, rate)}


def test_what_a_member_says_wrongly_is_not_shown_and_harms_nobody() -> None:
    cluster = Cluster("s0", "w0")
    for at, lie in enumerate([float("nan"), "many", None, [1], -5, 1e300, {"a": 1}]):
        cluster.now = 2.0 * at
        cluster.take("w0", Heartbeat(counters(lie, bytes_sent=lie, step_seconds=lie, staleness=lie, doing=lie)))
    shown = [point for one in view(cluster)["series"] for point in one["points"]]
    assert all(point[1] >= 0 for point in shown)


def test_heartbeats_close_together_tell_no_rate() -> None:
    cluster = Cluster("s0", "w0")
    for at in (10.0, 10.1, 10.2):
        cluster.now = at
        cluster.take("w0", Heartbeat(counters(at, bytes_sent=int(at * 100))))
    assert series(cluster, "worker 0", "bytes_sent_per_second") == []


def test_steps_of_a_job_are_counted_by_its_clock_or_by_pushes() -> None:
    sync, free = Cluster("s0", "w0"), Cluster("s0", "w0", mode="async")
    for at in range(4):
        for cluster in (sync, free):
            cluster.now = 2.0 * at
            cluster.take("w0", Heartbeat(counters(2.0 * at, pushes=8 * at)))
        sync.arrive("w0", at)
        sync.confirm(at)
    assert [point[1] for point in series(sync, "", "steps_per_second")] == [0.5, 0.5]
    assert [point[1] for point in series(free, "", "steps_per_second")] == [4.0, 4.0]


def test_a_step_that_waits_says_in_words_for_whom_and_what_that_does() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.take("w1", Heartbeat(counters(doing="computing")))
    cluster.arrive("w0", 0)
    cluster.now += 3.1
    (wait,) = view(cluster)["waits"]
    assert wait["text"] == "step 0 waits 3.1 s for worker 1 on host: last sign of life 3.1 s ago, computing"
    assert (wait["job"], wait["node"], wait["doing"]) == ("default", "worker 1", "computing")
    cluster.arrive("w1", 0)
    assert view(cluster)["waits"] == []


def test_a_slow_worker_is_named_within_three_steps() -> None:
    cluster = Cluster("s0", "w0", "w1")
    for step in range(3):
        cluster.now += 1.0
        cluster.arrive("w0", step)
        cluster.now += 1.0
        cluster.arrive("w1", step)
        cluster.confirm(step)
    assert view(cluster)["slowest"]["default"]["node"] == "worker 1"
    assert list(view(cluster)["awaited_s"]["default"]) == ["worker 1"]


def test_events_tell_who_came_and_went_and_what_began() -> None:
    cluster = Cluster("s0", "w0")
    cluster.wait(30.0, "s0")
    kinds = [event["kind"] for event in view(cluster)["events"]]
    assert kinds == ["started", "joined", "joined", "began", "lost"]
    assert view(cluster)["happened"]["lost"] == 1
    assert view(cluster, span=5.0)["events"] == [], "only of the time that is asked for"


def test_a_job_that_begins_anew_has_no_history_of_the_one_before() -> None:
    watching = Watching()
    watching.history.note("a", "worker 0", "loss", 0.0, 1, 1.0)
    watching.history.note("b", "worker 0", "loss", 0.0, 1, 1.0)
    watching.note([Log("info", "job 'a' begins", "began", job="a")], 1.0)
    assert {key.job for key in watching.history.series} == {"b"}


def test_events_and_their_words_are_bounded() -> None:
    watching = Watching()
    watching.note([Log("info", "x" * 10_000, "joined") for _ in range(2 * MAX_EVENTS)], 1.0)
    assert len(watching.events) == MAX_EVENTS
    assert {len(event.text) for event in watching.events} == {MAX_EVENT_CHARS}
    watching.validate()


def test_who_asks_too_often_is_put_off() -> None:
    cluster = Cluster("s0", "w0")
    answers = [errors(cluster.take("x", Watch(1, 10.0, 10))) for _ in range(200)]
    assert [LimitError.code] in answers
    cluster.now += 2.0
    view(cluster)


@for_each("asked", [{"job": "nobody's"}, {"node": "worker 7"}, {"points": 0}, {"span": 0.0}])
def test_a_question_about_nothing_is_answered_with_nothing(asked: dict[str, Any]) -> None:
    cluster = Cluster("s0", "w0")
    cluster.take("w0", Heartbeat(counters()))
    cluster.now = 100.0
    assert all(not one["points"] or "points" in asked for one in view(cluster, **asked)["series"])
