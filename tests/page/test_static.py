"""What the page draws of what a test says, in a real browser: colours, axes, sentences."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.asked import Asked, live, series, served
from tests.page.browser import Browser, missing

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(120),
    pytest.mark.skipif(missing() != "", reason=missing()),
]

TRAINING = {
    "state": "training", "mode": "sync", "optimizer": "sgd", "workers": 3, "steps": {"step": 7}, "parameters": 10,
    "nbytes": 40, "checkpoint": {}, "checkpoint_failed": "", "placement": [], "copies": [], "num_shards": 0, "lost": "",
}  # fmt: skip
SLOW = {"node": "worker 2", "host": "here", "text": "worker 2 came last to the last 5 steps"}


def member(role: str, rank: int, job: str = "") -> dict[str, Any]:
    return {
        "role": role, "rank": rank, "job": job, "name": f"{role}-{rank}", "host": "here", "silent_s": 0.1,
        "counters": {},
    }  # fmt: skip


MEMBERS = [*(member("worker", rank, "a") for rank in range(3)), *(member("server", rank) for rank in range(2))]


def line(name: str, node: str, *values: float, kind: str = "figure") -> dict[str, Any]:
    """Return a series of a value a second, up to now."""
    points = [(1000.0 - len(values) + at, value, value, value, at) for at, value in enumerate(values)]
    return {**series(name, *points, node=node), "kind": kind, "job": "" if node.startswith("server") else "a"}


def swatches(title: str) -> str:
    """Return the colours of a plot's lines by node, as JavaScript."""
    return (
        f"Object.fromEntries([...document.querySelectorAll('[data-plot={title}] .legend > span')].map((one) =>"
        " [one.textContent.split(':')[0].trim(), getComputedStyle(one.querySelector('.swatch')).backgroundColor]))"
    )


def ticks(title: str) -> str:
    return f"Plots.made.get('{title}').ticks"


def test_a_node_has_one_colour_in_all_plots_and_tables() -> None:
    told = [
        *(line("rss_nbytes", node, 1e6, 2e6) for node in ("server 0", "server 1", "worker 0", "worker 1", "worker 2")),
        line("cpu", "worker 2", 0.5, 0.5), line("cpu", "server 1", 0.5, 0.5),
        line("loss", "worker 1", 0.5, 0.4, kind="value"), line("loss", "worker 2", 0.5, 0.4, kind="value"),
    ]  # fmt: skip
    seen = live(members=MEMBERS, jobs={"a": TRAINING}, awaited_s={"a": {"worker 2": 3.0, "worker 1": 1.0}})
    with served(Asked(seen, told)) as (_, url), Browser() as browser:
        browser.open(url)
        browser.until("document.querySelectorAll('#plots .legend > span').length === 9")
        memory = browser.find(swatches("Memory"))
        assert len(set(memory.values())) == 5, "each of them has its own"
        for title in ("Processor", "loss"):
            drawn = browser.find(swatches(title))
            assert drawn == {node: memory[node] for node in drawn}
        for place in ("#nodes tbody tr", "#bars .bars > span"):
            shown = browser.find(
                f"Object.fromEntries([...document.querySelectorAll('{place}')].filter((one) =>"
                " one.querySelector('.swatch')).map((one) => [one.querySelector('.swatch').parentElement.textContent"
                ".trim(), getComputedStyle(one.querySelector('.swatch')).backgroundColor]))"
            )
            assert shown
            assert shown == {node: memory[node] for node in shown}
        assert browser.complaints == []


def test_more_nodes_than_colours_are_told_apart_by_dashes() -> None:
    members = [member("worker", rank, "a") for rank in range(12)]
    told = [line("cpu", f"worker {rank}", 0.1 * rank, 0.1 * rank) for rank in range(12)]
    with served(Asked(live(members=members, jobs={"a": TRAINING}), told)) as (_, url), Browser() as browser:
        browser.open(url)
        browser.until("document.querySelectorAll('[data-plot=Processor] .legend > span').length === 12")
        looks = browser.find(
            "[...document.querySelectorAll('[data-plot=Processor] .swatch')].map((one) => one.className)"
        )
        assert len(set(looks)) == 12
        dashes = browser.find("Plots.made.get('figure cpu').chart.series.slice(1).map((one) => String(one.dash || ''))")
        assert len(set(dashes)) == 2


def test_a_value_that_falls_by_decades_is_drawn_on_a_logarithmic_axis_and_a_button_turns_that() -> None:
    told = [
        line("loss", "worker 0", 3.0, 0.1, 0.004, 0.0001, kind="value"),
        line("accuracy", "worker 0", 0.5, 0.6, 0.7, kind="value"),
        line("margin", "worker 0", -100.0, 1.0, 1000.0, kind="value"),
    ]
    axis = "[data-plot={}] button"
    with served(Asked(live(members=MEMBERS, jobs={"a": TRAINING}), told)) as (_, url), Browser() as browser:
        browser.open(url)
        browser.until("document.querySelectorAll('#plots canvas').length > 3")
        kinds = "['loss', 'accuracy', 'margin'].map((name) => Plots.made.get(`value ${name}`).chart.scales.y.distr)"
        assert browser.find(kinds) == [3, 1, 1]
        assert [browser.text(axis.format(name)) for name in ("loss", "accuracy")] == ["axis: log", "axis: linear"]
        assert browser.find(f"document.querySelector('{axis.format('margin')}').hidden"), "it is not positive"
        assert browser.find(ticks("value loss")) == ["1e-4", "0.001", "0.01", "0.1", "1"]
        browser.click(axis.format("loss"))
        browser.click(axis.format("accuracy"))
        assert browser.find(kinds) == [1, 3, 1]
        assert browser.complaints == []


def test_an_axis_says_nothing_twice() -> None:
    told = [
        line("bytes_sent_per_second", "worker 0", 0.0, 0.0), line("rss_nbytes", "worker 0", 2.0, 3.0),
        line("cpu", "worker 0", 0.0, 0.0002), line("step_seconds", "worker 0", 0.0, 2e-6),
    ]  # fmt: skip
    with served(Asked(live(members=MEMBERS, jobs={"a": TRAINING}), told)) as (_, url), Browser() as browser:
        browser.open(url)
        browser.until("document.querySelectorAll('#plots canvas').length > 3")
        assert browser.find(ticks("figure bytes_sent_per_second")) == ["0 B"]
        assert browser.find(ticks("figure bytes_received_per_second")) == [], "of nothing there is no axis"
        for name in ("rss_nbytes", "cpu", "step_seconds"):
            said = browser.find(ticks(f"figure {name}"))
            assert len(said) == len(set(said)) > 0, said


@pytest.mark.parametrize("slowest", [{}, {"a": SLOW}], ids=["none", "slow"])
def test_where_one_is_slow_nobody_says_beside_it_that_nobody_is_waited_for(slowest: dict[str, Any]) -> None:
    with served(Asked(live(members=MEMBERS, jobs={"a": TRAINING}, slowest=slowest))) as (_, url), Browser() as browser:
        browser.open(url)
        browser.until("document.querySelector('#headline').textContent.includes('training, step 7')")
        said = browser.text("#headline")
        assert ("no node is awaited" in said) is not bool(slowest)
        assert browser.find("document.querySelectorAll('#headline .good').length") == (0 if slowest else 1)
