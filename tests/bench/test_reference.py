"""The reference that a benchmark's values are compared with must see what is wrong."""

from __future__ import annotations

import numpy as np

from bench import models
from bench.reference import can_check, deviation
from bench.setup import GRADIENT_SCALE, LEARNING_RATE, OPTIMIZERS, Setup
from tests.tables import for_each
from zmqps import codecs
from zmqps.optim import make_kernel

SHAPES = {"a": (700, 1000), "b": (7,), "c": (3, 5)}
PUSHES = 5


def trained(pushes: int, optimizer: str, codec: str) -> tuple[dict, dict, dict]:  # type: ignore[type-arg]
    """Return start, gradients and values; in one go, although a cluster has two slices of it."""
    start, gradients = models.arrays(SHAPES, 1.0), models.arrays(SHAPES, GRADIENT_SCALE, seed=1)
    values = np.concatenate([array.reshape(-1) for array in start.values()])
    gradient = np.concatenate([array.reshape(-1) for array in gradients.values()])
    [rule], _ = OPTIMIZERS[optimizer]().rules(["w"])
    slots = tuple(np.full_like(values, fill) for fill in rule.slot_fill)
    chosen = codecs.parse(codec)
    residual = np.zeros_like(gradient) if chosen.error_feedback else None
    for step in range(1, pushes + 1):
        decoded, _ = chosen.decode(chosen.encode(gradient, residual), gradient.size, np.float32)
        make_kernel(rule, "numpy")(values, decoded, values, slots, step)
    bounds = np.cumsum([array.size for array in start.values()])[:-1]
    parts = np.split(values, bounds)
    return start, gradients, {n: part.reshape(SHAPES[n]) for n, part in zip(SHAPES, parts, strict=True)}


@for_each("optimizer", ["sgd", "adam"])
@for_each("codec", ["raw", "int8", "onebit"])
def test_one_push_too_few_or_too_many_is_seen(optimizer: str, codec: str) -> None:
    setup = Setup(optimizer=optimizer, codec=codec)
    found = [deviation(setup, *trained(pushes, optimizer, codec), PUSHES, 1) for pushes in (4, 5, 6)]
    assert found[1] <= 1 < min(found[0], found[2])


def test_pushes_of_all_workers_count() -> None:
    state = trained(2 * PUSHES, "sgd", "raw")
    assert deviation(Setup(workers=2), *state, PUSHES, 2) <= 1
    assert deviation(Setup(workers=3), *state, PUSHES, 3) > 1


def test_one_wrong_value_at_the_end_of_a_shard_is_seen() -> None:
    start, gradients, values = trained(PUSHES, "sgd", "raw")
    values["c"][-1, -1] += 100 * LEARNING_RATE * GRADIENT_SCALE
    assert deviation(Setup(servers=2), start, gradients, values, PUSHES, 1) > 1


def test_what_depends_on_who_came_first_is_not_checked() -> None:
    assert can_check(Setup(workers=2, optimizer="adam"))
    assert can_check(Setup(workers=2, codec="topk"))
    assert not can_check(Setup(workers=2, optimizer="adam", codec="topk"))
