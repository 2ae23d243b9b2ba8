"""What is done beside other systems, and how fast zmqps has to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import zmqps
from bench.cases import apply, sync_step
from bench.children import call_all
from bench.peers import forms
from bench.peers.forms import batch_of
from bench.processes import BusyTime
from bench.setup import WARM_UP, Setup
from bench.stats import Times, percentile, ratio_spread
from bench.transfer import start_workers

#: Parameter servers, in works where zmqps uses TCP, and in those where it stays on the host.
OVER_TCP = ("tensorflow", "torch-rpc-uv", "flight-tcp", "ray", "sockets")
ON_A_HOST = ("tensorflow", "torch-rpc", "flight", "ray", "sockets")
#: Those that have neither servers nor steps of a single worker: they are measured beside synchronous steps, with as
#: many ranks as zmqps has workers.
ALL_REDUCE = ("gloo", "mpi", "ddp", "hivemind")
#: Of those that take seconds for a step no more turns are taken.
SLOW = {"hivemind": 4}
WORKS = {
    "sgd-1x1-tcp": Setup(transport="tcp"),
    "sgd-1x1": Setup(transport="auto"),
    "adam-1x1": Setup(transport="auto", optimizer="adam"),
    "sgd-2x2": Setup(transport="auto", servers=2, workers=2),
    "latency-tcp": Setup(model="1KB"),
}
#: Beside plain sockets only.
OVER_SOCKETS = {
    "adam-1x1-tcp": Setup(optimizer="adam"),
    "sgd-2x2-tcp": Setup(servers=2, workers=2),
    "tiny-10000-tcp": Setup(model="tiny-10000"),
}
#: The same where gradients are computed in the servers' sight and values are looked at where they lie. The peers
#: have no such thing: each is measured only beside the one whose target it shares.
IN_PLACE = {f"{work}-in-place": replace(WORKS[work], in_place=True) for work in ("sgd-1x1", "adam-1x1", "sgd-2x2")}
#: Synchronous training, as an all-reduce does it; gradients lie where servers see them, or are copied.
SYNC, SYNC_IN_PLACE, BARRIER = "sync-2x4", "sync-2x4-in-place", "sync-2x4-barrier"
SYNC_WORKS = {
    SYNC: Setup(transport="auto", servers=2, workers=4),
    SYNC_IN_PLACE: Setup(transport="auto", servers=2, workers=4, in_place=True),
}
#: The optimizers' kernels beside a memory copy.
KERNELS = {"kernel-sgd": "sgd", "kernel-adam": "adam"}
#: What the barrier may add to a synchronous step.
BARRIER_S = 1e-3
#: (work, beside) -> zmqps' time over the other's, at most.
TARGETS = {
    ("sgd-1x1-tcp", "sockets"): 1.25,
    ("sgd-1x1-tcp", "torch-rpc-uv"): 0.85,
    ("sgd-1x1-tcp", "tensorflow"): 0.45,
    ("sgd-1x1", "torch-rpc"): 0.50,
    ("adam-1x1", "torch-rpc"): 0.60,
    ("sgd-2x2", "tensorflow"): 0.25,
    ("sgd-1x1-in-place", "torch-rpc"): 0.50,
    ("adam-1x1-in-place", "torch-rpc"): 0.60,
    ("sgd-2x2-in-place", "tensorflow"): 0.25,
    ("adam-1x1-tcp", "sockets"): 1.40,
    ("sgd-2x2-tcp", "sockets"): 1.50,
    ("tiny-10000-tcp", "sockets"): 4.0,
    ("latency-tcp", "torch-rpc-uv"): 0.55,
    ("latency-tcp", "tensorflow"): 0.25,
    ("latency-tcp", "zmq-echo"): 2.0,
    ("kernel-sgd", "copy"): 1.3,
    ("kernel-adam", "copy"): 1.5,
    (SYNC, "gloo"): 0.75,
    (SYNC_IN_PLACE, "gloo"): 0.45,
    (BARRIER, "1 ms"): 1.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One work, done by zmqps and by a peer in turns; seconds of a worker's step.

    The quartiles of ``ratio`` are those of neighbours in the run; of several ``runs`` they are those of the runs, and
    all else is the median of theirs. ``form`` is the variant of the peer that was fastest, where it has several. The
    seconds of processors are those of all processes, for a step of all workers.
    """

    work: str
    peer: str
    zmqps_s: float
    peer_s: float
    zmqps_min_s: float | None
    peer_min_s: float | None
    ratio: float
    ratio_low: float
    ratio_high: float
    steps: int
    runs: int = 1
    form: str = ""
    zmqps_processor_s: float | None = None
    peer_processor_s: float | None = None

    @property
    def processor_ratio(self) -> float | None:
        """The same of processor time, which waiting for a core does not lengthen."""
        return (
            self.zmqps_processor_s / self.peer_processor_s if self.zmqps_processor_s and self.peer_processor_s else None
        )

    @property
    def target(self) -> float | None:
        """What the ratio has to be at most, where anything was set."""
        return TARGETS.get((self.work, self.peer))

    @property
    def verdict(self) -> str:
        """Whether the target is reached; nothing where there is none."""
        if self.target is None:
            return ""
        return "reached" if self.ratio <= self.target else f"missed by {self.ratio / self.target - 1:.0%}"


def combine(runs: Sequence[Result]) -> Result:
    """Return what several runs of the same pair found together."""
    if len(runs) == 1:
        return runs[0]

    def middle(name: str) -> float | None:
        values = [getattr(run, name) for run in runs]
        return None if None in values else percentile(values, 50)

    ratios = [run.ratio for run in runs]
    names = ("zmqps_s", "peer_s", "zmqps_min_s", "peer_min_s", "ratio", "zmqps_processor_s", "peer_processor_s")
    medians = {name: middle(name) for name in names}
    low, high = percentile(ratios, 25), percentile(ratios, 75)
    steps, number = sum(run.steps for run in runs), sum(run.runs for run in runs)
    return replace(runs[0], **medians, ratio_low=low, ratio_high=high, steps=steps, runs=number)


@dataclass(frozen=True, slots=True)
class Pair:
    """A workload and its peers; ``run(steps)`` runs it."""

    work: str
    peer: str
    run: Callable[[int], list[Result]]

    @property
    def title(self) -> str:
        """What ``--only`` looks into."""
        return f"{self.work} {self.peer}"


def pairs(python: Path) -> list[Pair]:
    """Return all there are; ``python`` is the interpreter of the peers' environment."""
    names = [(work, peer) for work, setup in WORKS.items() for peer in _parameter_servers(setup)]
    names.append(("latency-tcp", "zmq-echo"))
    names += [(work, peer) for work, peer in TARGETS if work in IN_PLACE or work in OVER_SOCKETS]
    names += [(work, peer) for work in SYNC_WORKS for peer in ALL_REDUCE]
    found = [Pair(work, peer, partial(compare, work, peer, python)) for work, peer in names]
    found.append(Pair(BARRIER, "1 ms", partial(_barrier, python)))
    return found + [Pair(work, "copy", partial(_kernel, work)) for work in KERNELS]


def _parameter_servers(setup: Setup) -> tuple[str, ...]:
    return OVER_TCP if setup.transport == "tcp" else ON_A_HOST


def compare(work: str, peer: str, python: Path, steps: int) -> list[Result]:
    """Let zmqps and a peer do a work in turns.

    Raises
    ------
    PeerError, ChildError, PSError
        One of them did not do it.
    """
    setup = (WORKS | IN_PLACE | OVER_SOCKETS | SYNC_WORKS)[work]
    mode = "sync" if work in SYNC_WORKS else "async"
    batch = batch_of(setup)
    turns = min(steps, SLOW.get(peer, steps))
    ours: list[float] = []
    theirs: list[float] = []
    processors: list[list[float]] = []
    # which is what it would be beside an idle cluster, too
    form = forms.fastest(peer, setup, python)
    with ExitStack() as stack:
        # a machine on which a peer takes all cores for seconds has no dead workers
        cluster = zmqps.LocalCluster(
            servers=setup.servers, workers=setup.workers, limits=zmqps.Limits(heartbeat_timeout=60.0)
        )
        stack.enter_context(cluster)
        children = start_workers(stack, cluster.address, setup, mode=mode)
        other = stack.enter_context(forms.start(peer, setup, python))
        busy = BusyTime([*cluster.pids.values(), *(child.pid for child in children)]), BusyTime(other.pids)
        for turn in range(WARM_UP + turns):
            busy[0].restart()
            measured = [s for times in call_all(children, "steps", f"turn {turn}", batch) for s in times]
            used = [busy[0].seconds() / batch]
            busy[1].restart()
            answered = other.steps(batch)
            used.append(busy[1].seconds() / batch)
            if turn >= WARM_UP:
                ours += measured
                theirs += answered
                processors.append(used)
    a, b = Times(tuple(ours)), Times(tuple(theirs))
    low, high = ratio_spread(ours, theirs)
    processor = [percentile(used, 50) for used in zip(*processors, strict=True)]
    return [
        Result(
            work=work,
            peer=peer,
            zmqps_s=a.median,
            peer_s=b.median,
            zmqps_min_s=a.minimum,
            peer_min_s=b.minimum,
            ratio=a.median / b.median,
            ratio_low=low,
            ratio_high=high,
            steps=len(ours),
            form=form,
            zmqps_processor_s=processor[0],
            peer_processor_s=processor[1],
        )
    ]


def _barrier(python: Path, steps: int) -> list[Result]:
    row = sync_step.measure(replace(SYNC_WORKS[SYNC], steps=steps), python)
    barrier_s = row.extra["barrier_s"]
    return [
        Result(
            work=BARRIER,
            peer="1 ms",
            zmqps_s=barrier_s,
            peer_s=BARRIER_S,
            zmqps_min_s=None,
            peer_min_s=None,
            ratio=barrier_s / BARRIER_S,
            ratio_low=row.extra["barrier_p25_s"] / BARRIER_S,
            ratio_high=row.extra["barrier_p75_s"] / BARRIER_S,
            steps=row.steps,
        )
    ]


def _kernel(work: str, steps: int) -> list[Result]:
    row = apply.measure("resnet50", KERNELS[work], "numba", steps)
    figures = (row.median_s, row.limit_s, row.ratio_to_limit, row.ratio_low, row.ratio_high)
    ours, copy, ratio, low, high = [figure for figure in figures if figure is not None]
    return [
        Result(
            work=work,
            peer="copy",
            zmqps_s=ours,
            peer_s=copy,
            zmqps_min_s=row.min_s,
            peer_min_s=None,
            ratio=ratio,
            ratio_low=low,
            ratio_high=high,
            steps=row.steps,
        )
    ]
