"""Run examples/digits.py in several processes at once, watch them, and show what came of it.

Starts a coordinator and servers on this machine, then the worker processes, and ends when they do. A worker that is
killed meanwhile (try it) is named, and the others continue. Into --output go summary.json, loss.png, staleness.png,
demo.log, the logs of the nodes, and what each worker reported and printed.

Exit codes: 0 the network reads the digits; 1 it does not, or the cluster broke; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import demo_faults
import demo_report
import digits
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import zmqps

WANTED_ACCURACY = 0.95
#: Seconds between two looks at the cluster.
TICK = 0.2
#: Seconds a worker gets to end after SIGTERM.
GRACE = 3.0
#: One thread of linear algebra per worker: four workers on two cores are enough of a crowd.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

console = Console()
log = logging.getLogger("demo")


class Worker:
    """A process that runs a script of a worker, and what the coordinator last said of it."""

    def __init__(self, number: int, script: Sequence[str], output: Path) -> None:
        self.rank = number  # a guess, until the coordinator knows it
        self.facts: dict[str, Any] = {}
        self.seen_at: float | None = None
        self.output: Path = output / f"worker-{number}.log"
        self._report: Path = output / f"worker-{number}.json"
        self._told = False
        command = [sys.executable, *script, "--report", str(self._report)]
        with self.output.open("w") as output:
            # its own process group: Ctrl-C reaches the demo alone, which then ends its workers
            self.process = subprocess.Popen(
                command, env={**os.environ, **ONE_THREAD}, stdout=output, stderr=output, process_group=0
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def failed(self) -> bool:
        return self.process.poll() not in (None, 0)

    @property
    def awaited(self) -> bool:
        """Whether there is more to learn of it: it runs, or the coordinator has yet to notice that it does not."""
        return self.running or (self.failed and bool(self.facts) and "how" not in self.facts)

    @property
    def pushes(self) -> int:
        """How many pushes its last heartbeat told of."""
        return int(self.facts.get("counters", {}).get("pushes", 0))

    def look_up(self, status: dict[str, Any]) -> None:
        """Take what a status says of it; log how it ended, if not well."""
        was_gone = "how" in self.facts
        for facts in (*status["members"], *status["gone"]):
            if facts["role"] == "worker" and facts["pid"] == self.process.pid:
                self.facts, self.rank = facts, facts["rank"]
                self.seen_at = time.time() - facts.get("last_seen_ago_s", facts.get("silent_s"))
        if self.failed and not self._told:
            self._told = True
            log.warning("worker %d: %s; its output is in %s", self.rank, how_it_ended(self.process), self.output)
        if not was_gone and self.facts.get("how") == "lost":
            result = self.result()
            lost = f"{result.rank} ({result.name}, {self.facts['host']}, pid {result.pid})"
            log.warning("lost worker %s: last sign of life %s; the others continue", lost, result.last_sign_of_life)

    def result(self) -> demo_report.Result:
        """Return what its own report says, if it has finished, or else its last heartbeat."""
        counts = json.loads(self._report.read_text()) if self.process.poll() == 0 else self.facts.get("counters", {})
        known = {name: value for name, value in counts.items() if name in demo_report.Result.__dataclass_fields__}
        name, how = self.facts.get("name", ""), how_it_ended(self.process)
        facts = {"rank": self.rank, "name": name, "pid": self.process.pid, "how": how, "seen_at": self.seen_at}
        return demo_report.Result(**{**known, **facts})

    def end(self) -> None:
        """Make sure that the process has ended."""
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def how_it_ended(process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    if code is None:
        return "running"
    if code >= 0:
        return f"exit code {code}" if code else "finished"
    return f"killed by {signal.Signals(-code).name}"


def digits_of(address: str, args: argparse.Namespace) -> list[str]:
    """Return what a worker runs."""
    command = [digits.__file__, "--coordinator", address]
    command += ["--mode", args.mode, "--passes", str(args.passes), "--batch", str(args.batch)]
    if args.mode == "sync":
        command += ["--share", str(args.workers)]
    elif args.mode == "bounded":
        command += ["--staleness", str(args.staleness)]
    return command


def watch(workers: Sequence[Worker], observer: zmqps.Worker, share: Callable[[int], int]) -> None:
    """Draw the progress bar until all workers have ended, and the coordinator knows which did not finish.

    ``share`` says how many pushes a worker makes, by its rank.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("pushes"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("starting", total=sum(share(worker.rank) for worker in workers))
        while any(worker.awaited for worker in workers):
            pause(workers)
            status = observer.status()
            for worker in workers:
                worker.look_up(status)
            total = sum(worker.pushes if worker.failed else share(worker.rank) for worker in workers)
            run = status["jobs"].get(observer.job, {"state": "ended", "mode": ""})
            state = f"training ({run['mode']})" if run["state"] == "training" else run["state"]
            progress.update(bar, description=state, completed=sum(w.pushes for w in workers), total=total)
        done = sum(worker.result().pushes for worker in workers)
        progress.update(bar, completed=done, total=done)


def pause(workers: Sequence[Worker]) -> None:
    """Wait for the next look at the cluster, or for a worker to end."""
    running = next((worker.process for worker in workers if worker.running), None)
    if running is None:
        time.sleep(TICK)
    else:
        with suppress(subprocess.TimeoutExpired):
            running.wait(TICK)


@contextlib.contextmanager
def cluster(args: argparse.Namespace) -> Iterator[str]:
    """Start the nodes; yield the coordinator's address."""
    limits = {
        "heartbeat_interval": TICK,  # each brings the counters that the progress bar shows
        "heartbeat_timeout": args.heartbeat_timeout or (2.0 if args.faults else 10.0),
    }
    if args.faults:
        with demo_faults.durable_cluster(args.output, servers=args.servers, workers=args.workers, **limits) as address:
            yield address
    else:
        with zmqps.LocalCluster(
            args.servers, args.workers, limits=zmqps.Limits(**limits), directory=args.output
        ) as nodes:
            yield nodes.address


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    # before anything runs: scikit-learn takes a while to import
    x_train, x_test, _, y_test = digits.load_data()
    num_batches = math.ceil(len(x_train) / args.batch)
    workers: list[Worker] = []
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(cluster(args))
        # open until the values are read: the cluster stays while an observer is connected
        observer = stack.enter_context(zmqps.connect(address, observer=True))
        console.print(f"coordinator at {address}", highlight=False)
        faults = None
        if args.faults:
            faults = demo_faults.Faults(address, args.passes * num_batches)
            stack.callback(faults.close)
        try:
            for number in range(args.workers):
                workers.append(Worker(number, digits_of(address, args), args.output))
            watch(workers, observer, lambda rank: args.passes * len(range(rank, num_batches, args.workers)))
        finally:
            for worker in workers:
                worker.end()
        killed = faults.finish() if faults is not None else []
        final = observer.pull()
        test_accuracy = digits.accuracy(final, x_test, y_test)
    results = sorted((worker.result() for worker in workers), key=lambda result: result.rank)
    facts = {
        "mode": args.mode,
        "staleness": args.staleness if args.mode == "bounded" else None,
        "servers": args.servers,
        "workers": args.workers,
        "test_accuracy": round(test_accuracy, 4),
    }
    acknowledged = [result.pushes for result in results]
    lost = (max(acknowledged) if args.mode == "sync" else sum(acknowledged)) - final.version
    if args.faults:
        facts |= {"lost_pushes": lost, "faults": [dataclasses.asdict(fault) for fault in killed]}
    summary = demo_report.summarize(results, seconds=time.monotonic() - began, **facts)
    (args.output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    demo_report.plot_loss(results, args.output / "loss.png")
    demo_report.plot_staleness(results, args.output / "staleness.png")
    console.print(demo_report.table(summary, f"test accuracy [bold]{test_accuracy:.3f}[/bold]"))
    if args.faults:
        console.print(demo_faults.table(killed, lost))
    console.print(f"summary.json, loss.png and staleness.png are in {args.output}", highlight=False)
    if test_accuracy < WANTED_ACCURACY:
        log.error("test accuracy %.3f is below %.2f: train longer (--passes)", test_accuracy, WANTED_ACCURACY)
        return 1
    if args.faults and (lost or len(killed) != 2):
        log.error("%d acknowledged pushes are not in the final values; %d of 2 nodes were killed", lost, len(killed))
        return 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train handwritten digits with a whole cluster on this machine.")
    parser.add_argument("--servers", type=int, default=2, help="default: 2")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: 4)")
    parser.add_argument("--mode", choices=digits.MODES, default="sync", help="default: sync")
    parser.add_argument(
        "--staleness",
        type=int,
        default=digits.MODES["bounded"],
        help="how many steps ahead a worker may be, with --mode bounded",
    )
    parser.add_argument("--passes", type=int, default=40, help="passes over the training data (default: 40)")
    parser.add_argument("--batch", type=int, default=16, help="images per step (default: 16)")
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="default: runs/demo")
    parser.add_argument(
        "--heartbeat-timeout", type=float, help="seconds of silence until a node is lost (default: 10; with --faults 2)"
    )
    parser.add_argument(
        "--faults", action="store_true", help="kill a server and the coordinator in the middle, and lose nothing"
    )
    return parser.parse_args()


def main() -> int:
    return run_logged(run, parse())


def run_logged(do: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Do something with a log in the folder of its output; return its exit code."""
    args.output.mkdir(parents=True, exist_ok=True)
    record = logging.FileHandler(args.output / "demo.log", "w")
    record.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    shown = RichHandler(console=console, show_path=False, log_time_format="%X")
    logging.basicConfig(level=logging.WARNING, handlers=[record, shown], format="%(message)s")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through every `finally`
    try:
        return do(args)
    except KeyboardInterrupt:
        log.error("interrupted")
        return 130
    except zmqps.PSError as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
