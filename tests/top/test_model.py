"""From a view to rows and sentences, whatever of the view is there."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from tests.top.views import job, member, series, training, waits
from zmqps.top.columns import job_columns, node_columns
from zmqps.top.model import Model, details, read


def node(model: Model, title: str) -> Any:
    return next(node for node in model.nodes if node.title == title)


def test_jobs_have_their_step_rate_and_loss() -> None:
    (row,) = read(training()).jobs
    assert (row.name, row.state, row.mode, row.workers) == ("default", "training", "sync", 4)
    assert (row.step, row.rate, row.label, row.last) == (412, 3.5, "loss", 0.4)
    assert row.spark(20) == "█▇▄▂▁"


def test_another_value_is_drawn_when_it_is_asked_for() -> None:
    model = read(training(), "accuracy")
    assert model.values == ("loss", "accuracy")
    assert (model.jobs[0].label, model.jobs[0].last) == ("accuracy", 0.5)
    assert read(training(), "of another job").jobs[0].label == "loss"


def test_nodes_have_what_their_series_say() -> None:
    model = read(training())
    assert [row.title for row in model.nodes] == [*[f"worker {n}" for n in range(4)], "server 0", "server 1"]
    worker, server = node(model, "worker 1"), node(model, "server 0")
    assert (worker.cpu, worker.rss, worker.step_s, worker.staleness) == (0.87, 2.1e8, 0.1, 0.5)
    assert (server.sent, server.received, server.cpu) == (2.5e6, 1.5e6, None)
    assert (worker.key, worker.node, worker.log) == ("default/worker 1", "default/worker 1", "worker-1")
    assert server.node == "server 0"


def test_a_slow_worker_is_named_and_only_that() -> None:
    assert read(training()).slow == ()
    model = read(training(slow=0.21))
    assert model.slow == ("worker 2 on host-a is slow: 310 ms a step, 3.1 × the median of the others",)
    assert [row.title for row in model.nodes if row.slow_by] == ["worker 2"]


def test_what_the_coordinator_says_about_who_comes_last_comes_first_and_once() -> None:
    said = {"default": {"node": "worker 2", "text": "worker 2 came last to the last 5 steps"}}
    assert read({**training(slow=0.21), "slowest": said}).slow == ("worker 2 came last to the last 5 steps",)
    model = read({**training(), "slowest": said})
    assert [row.title for row in model.nodes if row.is_slow] == ["worker 2"]


def test_what_a_step_waits_for_is_said_once() -> None:
    view = waits(training(), 0.3)
    view["status"]["waiting"] = ["job 'default': step waits for worker 2 (w, h, pid 1): step 412", "waiting for rain"]
    assert [text.split(" for ")[0] for text, _ in read(view).waits] == ["step 412 waits 0.3 s", "waiting"]


def test_a_worker_says_itself_how_its_log_is_called() -> None:
    view = training()
    view["status"]["members"][2]["counters"] = {"log": "worker-3"}
    assert node(read(view), "worker 0").log == "worker-3"


def test_workers_of_other_jobs_are_no_measure() -> None:
    view = training()
    view["status"]["members"].append(member("worker", 0, job="large"))
    view["series"].append(series("large", "worker 0", "step_seconds", [9.0]))
    assert read(view).slow == ()


def test_who_is_awaited_is_said_and_alarming_after_a_while() -> None:
    ((text, alarming),) = read(waits(training(), 0.3)).waits
    assert text.startswith("step 412 waits 0.3 s for worker 2 on host-a")
    assert not alarming
    model = read(waits(training(), 3.1))
    assert model.waits[0][1]
    assert node(model, "worker 2").doing == "computing"


def test_what_the_cluster_waits_for_and_jobs_that_are_lost_are_said() -> None:
    view = training()
    view["status"]["waiting"] = ["waiting for 1 of 2 servers"]
    view["status"]["jobs"]["default"] = job(lost="shard 1 is lost")
    assert [text for text, _ in read(view).waits] == ["waiting for 1 of 2 servers", "job 'default': shard 1 is lost"]


def test_the_headline_counts_who_is_there() -> None:
    assert read(training()).headline == "ready · up 3 min 4 s · 2 servers · 4 workers"


def test_nodes_of_a_job_are_its_own_and_those_of_all() -> None:
    view = training()
    view["status"]["members"].append(member("worker", 0, job="large"))
    assert [row.key for row in read(view).of_job("large")] == ["large/worker 0", "/server 0", "/server 1"]
    assert len(read(view).of_job("")) == 7


def test_a_node_that_was_not_heard_is_silent() -> None:
    view = training()
    view["status"]["members"][0]["silent_s"] = 8.0
    assert [row.title for row in read(view).nodes if row.is_silent] == ["server 0"]


def test_details_are_all_counters() -> None:
    lines = details(node(read(training(slow=0.21)), "worker 2"))
    assert lines[0] == "worker 2 of job 'default': worker-2"
    assert "its steps take 3.1 × the median of the others" in lines
    assert lines[-1] == "pushes  12"


def shown(model: Model, width: int) -> list[str]:
    tables = (job_columns(width, model.jobs), model.jobs), (node_columns(width, model.nodes), model.nodes)
    return [
        "".join(f"{column.text(row):<{column.width}}" for column in columns) for columns, rows in tables for row in rows
    ]


@for_each("width", [20, 46, 60, 80, 100, 200])
def test_no_row_is_wider_than_the_terminal_where_there_is_room_for_a_name(width: int) -> None:
    lines = shown(read(training(slow=0.21)), width)
    assert all(len(line) <= max(width, 33) for line in lines), lines


@for_each("width", [60, 80, 120])
def test_who_is_slow_is_seen_at_every_width(width: int) -> None:
    assert any("worker 2" in line and "slow: 310 ms" in line for line in shown(read(training(slow=0.21)), width))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_a_view_that_lacks_anything_or_has_anything_else_is_shown_all_the_same(data: st.DataObject) -> None:
    view: Any = training()
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            places.append((value, key))
            walk(item)

    walk(view)
    for _ in range(data.draw(st.integers(1, 4))):
        container, key = data.draw(st.sampled_from(places))
        try:
            container[key] = data.draw(PLAIN)
        except IndexError:
            continue
    model = read(view)
    shown(model, 80)
    for row in model.nodes:
        details(row)
