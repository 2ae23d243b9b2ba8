"""Wires that are slow, long or lossy: every byte is sent about once, and it takes about as long as plain TCP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.imports import ROOT
from tests.lan import cluster
from tests.lan.host import Host, Process
from tests.lan.lan import Lan
from tests.pace import allow

PLAIN = ROOT / "tests/lan/plain.py"
#: What may be sent beside the values: frames' headers, TCP's own acknowledgements, heartbeats.
BYTES = 1.05
#: ResNet-50, 102 MB in float32, is 25 MB in a codec of eight bits; the issue's measure.
MB = 25


def plain(source: Host, target: Host, mb: float) -> tuple[float, float]:
    """Return the seconds and megabytes that plain TCP takes to carry ``mb`` MB."""
    listener = target.popen(["python", PLAIN, "serve", 7000])
    listener.said("listening")
    before = target.traffic()
    words = ["python", PLAIN, "send", target.address, 7000, int(mb * 1e6)]
    seconds = float(source.run(words, timeout=allow(120)))
    listener.kill()
    return seconds, (target.traffic() - before).received / 1e6


def figures(worker: Process) -> dict[str, Any]:
    """Return what a worker has said of its training."""
    return json.loads(next(line for _, line in worker.lines if line.startswith("figures ")).removeprefix("figures "))


def check(lan: Lan, *, mb: float, workers: int, steps: int, slice_size: str, timeout: float) -> None:
    """Push from some workers to one server over the wires as they are, and compare with plain TCP."""
    a, *others = lan.hosts
    nodes = cluster.start(a, [a], f"--workers={workers}", f"--slice-size={slice_size}", "--once")
    needed = mb * workers * steps
    seconds, sent = plain(others[0], a, needed)
    words = ["--mb", mb, "--steps", steps, "--no-pull", "--timeout", timeout]
    began = [nodes.start_worker(others[index % len(others)], *words) for index in range(workers)]
    for worker in began:
        worker.said("begins", timeout)
    before = a.traffic()
    for worker in began:
        assert worker.finish(timeout) == 0, worker.output
    received = (a.traffic() - before).received / 1e6
    took = max(sum(figures(worker)["push"]) for worker in began)
    retries = sum(figures(worker)["retries"] for worker in began)
    said = (
        f"{needed} MB: plain TCP {seconds:.1f} s, {sent:.1f} MB; zmqps {took:.1f} s, {received:.1f} MB, {retries} again"
    )
    print(said)
    assert received < BYTES * max(sent, needed), said
    assert took < 1.1 * seconds + 0.5, said


@pytest.mark.lan("limit")
@pytest.mark.timeout(150)
def test_a_model_of_25_MB_over_100_Mbit_takes_what_plain_tcp_takes(lan: Lan) -> None:
    lan.limit(lan.hosts[0], mbit=100)
    check(lan, mb=MB, workers=1, steps=2, slice_size="4MiB", timeout=allow(60))


@pytest.mark.lan("limit")
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("mbit", "mb", "workers", "slice_size"),
    [(10, MB, 1, "4MiB"), (100, 2 * MB, 2, "32MiB"), (100, MB, 12, "4MiB")],
    ids=["10 Mbit/s", "slices of 32 MiB", "12 workers"],
)
def test_nothing_is_sent_twice_over_slow_and_shared_wires(
    lan: Lan, mbit: int, mb: float, workers: int, slice_size: str
) -> None:
    lan.limit(lan.hosts[0], mbit=mbit)
    check(lan, mb=mb, workers=workers, steps=1, slice_size=slice_size, timeout=allow(150))


@pytest.mark.lan
@pytest.mark.timeout(150)
def test_training_goes_on_over_a_long_and_lossy_wire(lan: Lan) -> None:
    a, b, c = lan.hosts[:3]
    lan.delay(b, ms=20)
    lan.loss(b, 0.01)
    nodes = cluster.start(a, [b], "--once")
    worker = nodes.worker(c, "--mb", 2, "--steps", 3)
    assert worker.finish(90) == 0, worker.output
    got = figures(worker)
    assert got["min"] == got["max"] == 3.0
    assert got["retries"] == 0
    assert [node.finish(20) for node in nodes.nodes] == [0, 0], nodes.log
