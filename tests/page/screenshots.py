"""Takes the pictures of the page and of ``zmqps top`` that the documents show: ``make screenshots``.

Two jobs run for it: the handwritten digits of the examples, and one of four workers that go step by step, of which one
becomes slow. It fails where that one is not named within three steps.
"""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from tests.imports import ROOT
from tests.page import straggler
from tests.page.browser import Browser, missing
from zmqps.cli.top import questions
from zmqps.launch.processes import node_environment
from zmqps.nodes.inquiry import ask_view
from zmqps.top.app import screenshot

IMAGES = ROOT / "docs" / "images"
#: Seconds that anything may take on a busy machine; and between two looks at what only the cluster tells.
PATIENCE, LOOK_S = 120.0, 0.05
#: Seconds of training that the pictures show.
SHOWN_S = 45.0
#: The slow worker has to be named after so many steps.
WITHIN = 3
#: What a reader downloads for each, at most; and the colours that are left of a picture for that.
MOST_NBYTES, COLOURS = 200_000, 256
COLUMNS, LINES = 118, 17


@contextmanager
def cluster(directory: Path, options: Sequence[str], script: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Run a job with `zmqps up`; yield the coordinator's address and the page's."""
    command = [
        sys.executable,
        "-m",
        "zmqps",
        "up",
        "--address",
        "tcp://127.0.0.1:0",
        "--servers",
        "2",
        "--workers",
        "4",
    ]
    command += ["--page", "127.0.0.1:0", *options, "--", sys.executable, *script]
    log = directory / "output"
    with log.open("wb") as output:
        environment = {**node_environment(), "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output)
    try:
        found = wait_for(lambda: re.search(r"cluster at (\S+),.*page at (\S+)", log.read_text(), re.DOTALL), process)
        yield found[1], found[2]
    except BaseException:
        print(log.read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def wait_for(look: Callable[[], Any], process: subprocess.Popen[bytes] | None = None) -> Any:
    """Return what is found, once it is."""
    until = time.monotonic() + PATIENCE
    while not (found := look()):
        assert process is None or process.poll() is None, "the cluster has ended"
        assert time.monotonic() < until, "it takes too long"
        time.sleep(LOOK_S)
    return found


def step_of(view: Mapping[str, Any]) -> int:
    """Return how far the job is; 0 where there is none."""
    return max((int(job["steps"].get("step") or 0) for job in view["status"]["jobs"].values()), default=0)


def is_trained(view: Mapping[str, Any]) -> bool:
    """Return whether there is a job that is trained."""
    return any(job["state"] == "training" for job in view["status"]["jobs"].values())


def named_within(address: str, page: Browser) -> tuple[int, int]:
    """Return how many slow steps it took until the coordinator named the slow worker, and until the page did.

    Before it was slow nobody was named three times in a row for long: somebody is last by chance.
    """
    slow = f"worker {straggler.SLOW}"
    wait_for(lambda: step_of(ask_view(address, points=1)) >= straggler.FROM)

    def named() -> int:
        view = ask_view(address, points=1)
        by_name = any(one["node"] == slow and one["step_s"] > 1.0 for one in view["slowest"].values())
        return step_of(view) - straggler.FROM if by_name else 0

    told = wait_for(named)
    page.until(f"document.querySelector('#headline').textContent.includes('slowest: {slow} ')")
    said = re.search(r"came last to the last (\d+) steps", page.text("#headline"))
    assert said is not None
    return told, int(said[1])


def take(name: str, address: str, url: str, directory: Path, *, whole: bool) -> None:
    """Take the pictures of a job: the page, light and dark, whole or as much as a window shows of it, and ``top``."""
    for scheme in ("light", "dark"):
        with Browser(scheme, height=1112) as browser:
            browser.open(url)
            browser.until("document.querySelectorAll('#plots canvas').length > 5")
            browser.until("document.querySelectorAll('#timeline .lane i').length > 5")
            shot = directory / "shot.png"
            browser.picture(shot, whole=whole)
            keep(shot, f"page-{name}-{scheme}")
    drawn = screenshot(questions(address, None, None, directory, None), columns=COLUMNS, lines=LINES)
    with Browser("dark", width=1100, height=700) as browser:
        browser.draw(drawn, directory / "shot.png")
    keep(directory / "shot.png", f"top-{name}")


def keep(shot: Path, name: str) -> None:
    """Write a picture with fewer colours, which nobody sees and which takes half of the bytes."""
    packed = io.BytesIO()
    with Image.open(shot) as image:
        image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            packed, "PNG", optimize=True
        )
    assert packed.tell() < MOST_NBYTES, f"{name} has {packed.tell()} bytes"
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / f"{name}.png").write_bytes(packed.getvalue())
    print(f"docs/images/{name}.png: {packed.tell() / 1000:.0f} kB")


def digits() -> None:
    """The digits of the examples, asynchronous, with copies and checkpoints."""
    with TemporaryDirectory() as place:
        options = ["--replicas", "1", "--checkpoint", "checkpoints", "--checkpoint-every", "15s"]
        script = [str(ROOT / "examples" / "digits.py"), "--passes", "100000"]
        with cluster(Path(place), options, script) as (address, url):
            began = wait_for(lambda: is_trained(ask_view(address, points=1)) and time.monotonic())
            wait_for(lambda: time.monotonic() > began + SHOWN_S)
            take("digits", address, url, Path(place), whole=False)


def slow() -> None:
    """A step of four workers, one of which becomes slow."""
    with TemporaryDirectory() as place:
        with cluster(Path(place), [], ["-m", "tests.page.straggler"]) as (address, url):
            with Browser() as browser:
                browser.open(url)
                told, said = named_within(address, browser)
            print(f"worker {straggler.SLOW} is slow from step {straggler.FROM} on")
            print(f"the coordinator names it after {told} of its steps, the page after {said}")
            assert 0 < told <= WITHIN, "it is named too late"
            assert said <= WITHIN, "the page names it too late"
            wait_for(lambda: step_of(ask_view(address, points=1)) >= straggler.FROM + 14)
            take("slow", address, url, Path(place), whole=True)


def main() -> None:
    """Take all pictures."""
    if reason := missing():
        sys.exit(f"screenshots need a browser: {reason}")
    slow()
    digits()


if __name__ == "__main__":
    main()
