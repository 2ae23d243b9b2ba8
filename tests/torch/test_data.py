"""Each worker has its part of the batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from zmqps.torch import shard  # noqa: E402


def parts(loader: Any, number: int, **options: Any) -> list[Any]:
    return [shard(loader, SimpleNamespace(rank=rank, num_workers=number), **options) for rank in range(number)]  # type: ignore[arg-type]


def passes(some: list[Any]) -> list[list[list[int]]]:
    return [[batch[0].tolist() for batch in part] for part in some]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("drop_last", "own"), [(False, 6), (True, 5)])
def test_workers_have_other_examples_and_as_many(shuffle: bool, drop_last: bool, own: int) -> None:
    data = TensorDataset(torch.arange(17))
    loader = DataLoader(data, batch_size=2, shuffle=shuffle, drop_last=drop_last)
    found = parts(loader, 3, seed=4)
    first = passes(found)
    flat = [[number for batch in batches for number in batch] for batches in first]
    assert {len(examples) for examples in flat} == {own - own % 2 if drop_last else own}
    assert len(found[0]) == len(first[0])
    if not drop_last:
        assert sorted({*flat[0], *flat[1], *flat[2]}) == list(range(17))
    second = passes(found)
    assert (first == second) != shuffle
    for part in found:
        part.set_epoch(0)
    assert passes(found) == first


def test_a_worker_alone_has_all() -> None:
    loader = DataLoader(TensorDataset(torch.arange(7)), batch_size=3)
    assert passes(parts(loader, 1)) == [[[0, 1, 2], [3, 4, 5], [6]]]


def test_of_anything_else_each_worker_has_each_nth_batch_and_a_rest_is_left_out() -> None:
    found = parts([[number] for number in range(8)], 3)
    assert [list(part) for part in found] == [[[0], [3]], [[1], [4]], [[2], [5]]]
    assert {len(part) for part in found} == {2}


def test_samplers_that_draw_otherwise_are_left_as_they_are() -> None:
    data = TensorDataset(torch.arange(100))
    some = torch.utils.data.RandomSampler(data, num_samples=12)
    found = parts(DataLoader(data, batch_size=2, sampler=some), 2)
    assert [len(list(part)) for part in found] == [3, 3]
    assert passes(parts(DataLoader(TensorDataset(torch.arange(0)), batch_size=2), 2)) == [[], []]
    assert passes(parts(DataLoader(TensorDataset(torch.arange(1)), batch_size=2), 3)) == [[[0]], [[0]], [[0]]]
