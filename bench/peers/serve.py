"""How a peer's script is asked for steps: JSON lines on standard input and output.

Imported by the scripts, which run in the peers' environment, without zmqps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench import models
from bench.ids import KINDS, RowWork

LEARNING_RATE = 1e-3
GRADIENT_SCALE = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a peer shall do."""

    model: str
    servers: int
    workers: int
    optimizer: str
    variant: str

    @property
    def shapes(self) -> models.Shapes:
        """The model's tensors."""
        return models.find(self.model)


class Peer(Protocol):
    """A system that is up and running."""

    def steps(self, count: int) -> list[float]:
        """Let all workers push gradients and pull values so many times; return the seconds of each."""

    def close(self) -> None:
        """End it and its processes."""


def work_of() -> Work:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--optimizer", default="sgd", choices=("sgd", "adam"))
    parser.add_argument("--variant", default="")
    return Work(**vars(parser.parse_args()))


def serve(start: Callable[[Work], Peer]) -> None:
    """Start what the command line asks for, then do as many steps as each line says."""
    work = work_of()
    answer(lambda: start(work))


def serve_rows(start: Callable[[RowWork, str], Peer]) -> None:
    """The same for rows of a table; ``start`` takes the work, and the variant."""
    parser, usual = argparse.ArgumentParser(), RowWork()
    for name in ("rows", "dim", "batch", "servers", "workers"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    parser.add_argument("--ids", default=usual.ids, choices=KINDS)
    parser.add_argument("--optimizer", default="adagrad")
    parser.add_argument("--variant", default="")
    fields = vars(parser.parse_args())
    variant = fields.pop("variant")
    answer(lambda: start(RowWork(**fields), variant))


def answer(start: Callable[[], Peer]) -> None:
    """Start it, say so, then do as many steps as each line says."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the system itself prints must not be taken for an answer
    peer = start()
    try:
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(peer.steps(int(line))), file=answers, flush=True)
    finally:
        peer.close()


def shards(shapes: models.Shapes, count: int) -> list[list[str]]:
    """Return the names of the tensors on each server, balanced by size, largest first."""
    names: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for name in sorted(shapes, key=lambda name: -models.num_elements({name: shapes[name]})):
        least = sizes.index(min(sizes))
        names[least].append(name)
        sizes[least] += models.num_elements({name: shapes[name]})
    return names
