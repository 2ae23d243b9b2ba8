"""The peers, and for each the form in which it does a work fastest here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from bench.echo import ZmqEcho
from bench.limits import PlainSockets
from bench.peers.process import PeerProcess
from bench.setup import WARM_UP, Setup

#: Name -> (script, its variants); the fastest of these is compared.
PEERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tensorflow": ("tensorflow_ps", ("",)),
    "torch-rpc-uv": ("torch_rpc", ("uv", "uv-mpt")),
    "torch-rpc": ("torch_rpc", ("", "cma", "uv")),
    "flight-tcp": ("flight", ("tcp-1", "tcp-2", "tcp-4")),
    "flight": ("flight", ("unix-1", "unix-2", "tcp-2")),
    "ray": ("ray_ps", ("",)),
    "gloo": ("gloo", ("flat", "buckets")),
    "mpi": ("mpi_ranks", ("flat", "buckets")),
    "ddp": ("ddp", ("",)),
    "hivemind": ("hivemind_average", ("",)),
    "sockets": ("", ("",)),
    "zmq-echo": ("", ("",)),
}
#: Steps in a turn where a step is short.
BATCH = 50
#: Turns by which a form is chosen. Where they cannot tell two forms apart, neither is much better.
TRIALS = 5


def batch_of(setup: Setup) -> int:
    """Return how many steps a turn has."""
    return BATCH if setup.nbytes < 1 << 16 else 1


def start(peer: str, setup: Setup, python: Path) -> PeerProcess | PlainSockets | ZmqEcho:
    """Start a peer in its fastest form.

    Raises
    ------
    PeerMissing
        What it needs is not installed.
    PeerError
        It did not start.
    """
    if peer == "zmq-echo":
        return ZmqEcho(setup.nbytes)
    if peer == "sockets":
        return PlainSockets(setup.transport, setup.servers, setup.workers, setup.nbytes, setup.nbytes)
    return _start(peer, fastest(peer, setup, python), setup, python)


@cache
def fastest(peer: str, setup: Setup, python: Path) -> str:
    """Return the variant of a peer that does a work in the least time, by the fastest of a few steps of each alone."""
    variants = PEERS[peer][1]
    if len(variants) == 1:
        return variants[0]
    seconds = {}
    for variant in variants:
        with _start(peer, variant, setup, python) as process:
            process.steps(WARM_UP * batch_of(setup))
            seconds[variant] = min(process.steps(TRIALS * batch_of(setup)))
    return min(variants, key=lambda variant: seconds[variant])


def _start(peer: str, variant: str, setup: Setup, python: Path) -> PeerProcess:
    names = ("model", "optimizer", "servers", "workers")
    flags = [*(f"--{name}={getattr(setup, name)}" for name in names), f"--variant={variant}"]
    return PeerProcess(python, f"bench.peers.{PEERS[peer][0]}", flags)
