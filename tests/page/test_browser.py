"""The page in a real browser, beside clusters of real processes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import zmqps
from tests.durable.nodes import Nodes
from tests.page.asked import Asked, live, served
from tests.page.browser import Browser, missing
from tests.team import PATIENCE, Team

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(240),
    pytest.mark.skipif(missing() != "", reason=missing()),
]

#: As a script may name a value that somebody else has chosen for it.
HOSTILE = "<img src=x onerror=alert(1)>"
ONES = {"w": np.ones(50_000, np.float32), "b": np.ones(10, np.float32)}
SHOWN_S = 2.0
#: The last step that the page has of the job.
STEP = "Number(document.querySelector('#jobs tbody td:nth-child(6)').textContent.replaceAll(',', ''))"


class Training:
    """Workers that train step by step until the context ends; the one of the last rank takes longer."""

    def __init__(self, address: str, workers: int = 3, slow_s: float = 0.3) -> None:
        self._team = Team(address, workers, ONES, optimizer=zmqps.optim.sgd(1e-3), mode="sync")
        self._slow_s, self._ending = slow_s, threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._all = self._pool.submit(self._team.all, self._train)

    def _train(self, worker: zmqps.Worker) -> None:
        last = worker.rank == len(self._team.workers) - 1
        for step in range(1_000_000):
            if self._ending.wait(self._slow_s if last else 0.0):  # what a slow computation would take
                worker.close()
                return
            worker.log({"loss": 1 / (1 + step), HOSTILE: worker.rank}, step=step)
            worker.push(ONES, timeout=4 * PATIENCE)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        try:
            self._all.result(6 * PATIENCE)
        finally:
            self._pool.shutdown()
            self._team.close()


def page_of(cluster: Nodes) -> str:
    found = re.findall(r"the page is at (http://\S+/)", cluster.log("coordinator"))
    return str(found[-1])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a cluster that trains."""
    with (
        Nodes(tmp_path_factory.mktemp("trains"), 2, page="127.0.0.1:0", replicas=1) as cluster,
        Training(cluster.address),
    ):
        cluster.wait_until(lambda status: any(job["state"] == "training" for job in status["jobs"].values()))
        yield page_of(cluster)


@contextmanager
def opened(url: str, **options: object) -> Iterator[Browser]:
    """A browser that shows the page, and at the end: it has asked nobody else, and has not complained."""
    with Browser(**options) as browser:  # type: ignore[arg-type]
        assert browser.open(url) == 200
        browser.until("document.querySelector('#jobs tbody')")
        yield browser
        assert browser.complaints == []
        assert {urlsplit(address).netloc for address in browser.asked} == {urlsplit(url).netloc}


def test_a_running_job_is_shown_within_two_seconds_and_goes_on(url: str) -> None:
    with opened(url) as browser:
        browser.until(
            "document.querySelector('#jobs tbody').textContent.includes('training')"
            " && document.querySelectorAll('#plots canvas').length > 3 && (window.shownAt ??= performance.now())"
        )
        assert browser.find("window.shownAt") / 1000 < SHOWN_S
        step = browser.find(STEP)
        browser.until(f"{STEP} > {step + 2}")
        loss = "[...document.querySelectorAll('[data-plot=loss] .legend > span')].map((one) => one.textContent)"
        before = browser.find(loss)
        browser.until(f"JSON.stringify({loss}) !== JSON.stringify({json.dumps(before)}) && {loss}.length === 3")
        assert all(re.fullmatch(r" worker \d: \S+", text) for text in browser.find(loss))
        assert re.fullmatch(r"loss as logged; step \d+", browser.text("[data-plot=loss] h2"))


def test_the_barrier_is_told_in_words_and_the_slow_worker_named(url: str) -> None:
    with opened(url) as browser:
        browser.until("document.querySelector('#headline').textContent.includes('slowest: worker 2')")
        browser.until(
            r"/step \d+ waits \d+\.\d s for worker 2 on \S+: last sign of life \d+\.\d s ago, computing/"
            ".test(document.querySelector('#headline').textContent)"
        )
        browser.until("document.querySelector('tr.slow')?.textContent.startsWith('worker 2 (slowest)')")
        browser.until("document.querySelector('#bars').textContent.includes('Barrier waits')")


def test_names_that_are_markup_are_shown_as_text(url: str) -> None:
    with opened(url) as browser:
        browser.until("document.querySelectorAll('#plots h2').length > 3")
        titles = browser.find("[...document.querySelectorAll('#plots h2')].map((one) => one.textContent)")
        assert f"{HOSTILE} as logged" in [title.partition(";")[0] for title in titles]
        assert browser.find("document.images.length") == 0


def test_the_placement_staleness_nodes_and_events_are_drawn(url: str) -> None:
    with opened(url) as browser:
        browser.until("document.querySelectorAll('.holders .shards > .copy').length === 2")
        assert browser.find("document.querySelectorAll('.holders .shards > div:not(.copy)').length") == 2
        browser.until("document.querySelector('#bars').textContent.includes('Staleness')")
        assert browser.find("document.querySelectorAll('#nodes tbody tr').length") == 5
        assert browser.find("document.querySelectorAll('#timeline .lane i').length") >= 6
        assert "worker 2" in browser.text("#events")


@pytest.mark.parametrize(("scheme", "light"), [("light", True), ("dark", False)])
def test_it_is_light_or_dark_as_the_system_says_and_as_one_chooses(url: str, scheme: str, light: bool) -> None:
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => Number(part) > 127)"
    with opened(url, scheme=scheme) as browser:
        assert browser.find(ground) is light
        browser.click("#theme")  # light
        assert browser.find(ground) is True
        browser.click("#theme")  # dark
        assert browser.find(ground) is False


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_it_fits_narrow_and_wide_screens(url: str, width: int) -> None:
    with opened(url, width=width) as browser:
        browser.until("document.querySelectorAll('#plots canvas').length > 3")
        browser.until("document.documentElement.scrollWidth <= innerWidth")
        plots = "[...document.querySelectorAll('#plots .card')].map((one) => one.getBoundingClientRect().right)"
        assert max(browser.find(plots)) <= width


def test_one_can_look_back_for_as_long_as_there_is_a_history(url: str) -> None:
    with opened(url) as browser:
        for number, span in enumerate((300, 3600, 86400, 604800), 1):
            browser.click(f"#spans button:nth-child({number})")
            browser.until(f"document.querySelector('#spans button:nth-child({number})[aria-pressed=true]')")
            browser.until(f"performance.getEntriesByType('resource').some((one) => one.name.endsWith('span={span}'))")


def test_it_says_when_the_coordinator_is_gone_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    away = "!document.querySelector('#silence').hidden"
    with (
        Nodes(tmp_path, 2, journal=tmp_path / "journal", page="127.0.0.1:0", patience=120.0) as cluster,
        Training(cluster.address, slow_s=0.1),
        Browser() as browser,
    ):
        url = page_of(cluster)
        browser.open(url)
        browser.until("document.querySelector('#jobs tbody')?.textContent.includes('training')")
        cluster.kill("coordinator")
        browser.until(away)
        assert browser.text("#silence").startswith("The coordinator does not answer since ")
        step = browser.find(STEP)
        cluster.restart("coordinator")
        assert page_of(cluster) == url
        browser.until(f"!({away})")
        browser.until(f"{STEP} > {step + 2}")
        browser.until("document.querySelectorAll('#plots canvas').length > 3")
        browser.until("document.querySelector('#events').textContent.includes('started')")
        assert [text for text in browser.complaints if "ERR_" not in text] == []
        assert {urlsplit(address).netloc for address in browser.asked} == {urlsplit(url).netloc}


def test_the_token_is_asked_for_once_and_is_not_to_be_had_by_scripts() -> None:
    with served(Asked(live()), "5f" * 32) as (port, url), Browser() as browser:
        assert browser.open(f"http://127.0.0.1:{port}/") == 403
        assert browser.open(url) == 200
        assert browser.find("location.href") == f"http://127.0.0.1:{port}/"
        browser.until("document.querySelector('#headline').textContent.includes('no job is being trained')")
        (cookie,) = browser.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert browser.find("document.cookie") == ""
