"""A worker's examples in a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from zmqps.core.job.spec import MAX_COUNT
from zmqps.core.protocol.terms import SET
from zmqps.core.worker.pace import StepExamples
from zmqps.core.worker.rows import RowSource
from zmqps.core.worker.transfer import PushTransfer, Source


@dataclass
class Piece:
    parameter: int


@dataclass
class Parts:
    extents: list[Piece] = field(default_factory=list)


def push(examples: int, *parameters: int, terms: Any = (), rows: bool = False) -> PushTransfer:
    """Return a push of some parameters, each on another shard and in two messages; or of rows."""
    cargoes: Any = tuple((Parts([Piece(number)]), Parts([Piece(number)])) for number in parameters)
    source: Any = RowSource(rows=np.zeros((1, 1), np.float32)) if rows else Source()
    return PushTransfer(cargoes=() if rows else cargoes, source=source, examples=examples, terms=terms)


def wanted() -> StepExamples:
    """Return those of a job whose mean is over all workers."""
    counted = StepExamples()
    counted.wanted = True
    return counted


@pytest.mark.parametrize(
    ("pushes", "examples"),
    [
        ([], 1),
        ([push(8, 0, 1)], 8),
        ([push(8, 0), push(8, 1)], 8),  # parts of one batch
        ([push(8, 0, 1), push(4, 0, 1)], 12),  # two batches
        ([push(8, 0, 1), push(4, 0)], 12),
        ([push(3, 0), push(8)], 8),  # nothing more of the same batch
        ([push(8, 0), push(8, rows=True), push(8, rows=True)], 8),
        ([push(2, rows=True)], 2),
        ([push(8, 0), push(100, 1, terms=(SET,))], 8),
        ([push(1, 0), push(MAX_COUNT, 0)], MAX_COUNT),
    ],
)
def test_parts_of_a_batch_count_once_and_batches_add_up(pushes: list[PushTransfer], examples: int) -> None:
    counted = wanted()
    for one in pushes:
        counted.add(one)
    assert counted.so_far == examples
    counted.clear()
    assert counted.so_far == 1, "a step begins anew"


def test_a_push_that_is_alone_in_its_step_is_not_taken_apart() -> None:
    counted = wanted()
    counted.add(PushTransfer(source=Source(), examples=5), alone=True)
    assert counted.so_far == 5
    counted.add(push(5, 0))
    counted.clear()
    assert counted.so_far == 1


def test_where_no_mean_is_over_all_workers_nothing_is_counted() -> None:
    counted = StepExamples()
    counted.add(push(5, 0))
    assert counted.so_far == 1
