"""Each worker has its part of the batches."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from zmqps.errors import ConfigurationError  # noqa: E402
from zmqps.torch import shard  # noqa: E402

TOTAL = 26
DATA = TensorDataset(torch.arange(TOTAL))


def parts(loader: Any, number: int, **options: Any) -> list[Any]:
    """Return what each worker makes of the same loader, or of one that it makes itself."""
    made = loader if callable(loader) else lambda: loader
    return [
        shard(made(), SimpleNamespace(rank=rank, num_workers=number), **options)  # type: ignore[arg-type]
        for rank in range(number)
    ]


def numbers(batches: Any) -> list[list[int]]:
    """Return the examples of some batches; a data set's are alone in a tuple."""
    return [torch.as_tensor(batch[0] if isinstance(batch, list | tuple) else batch).tolist() for batch in batches]


def passes(some: list[Any]) -> list[list[list[int]]]:
    """Let each worker take a pass; they have drawn other random numbers before."""
    found = []
    for rank, part in enumerate(some):
        torch.manual_seed(rank), random.seed(rank), np.random.seed(rank)  # type: ignore[func-returns-value]
        found.append(numbers(part))
    return found


def flat(batches: Any) -> list[int]:
    return [number for batch in batches for number in (batch if isinstance(batch, list) else [batch])]


class Shuffled(Sampler[int]):
    """Shuffles by whatever it is given: a module, or a generator."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        order = list(range(TOTAL))
        self.source.shuffle(order)
        yield from order

    def __len__(self) -> int:
        return TOTAL


class Pairs:
    """A batch sampler that derives from nothing: shuffles pairs of examples."""

    def __iter__(self) -> Iterator[list[int]]:
        for place in torch.randperm(TOTAL // 2).tolist():
            yield [2 * place, 2 * place + 1]

    def __len__(self) -> int:
        return TOTAL // 2


class Stream(IterableDataset):  # type: ignore[misc,unused-ignore]
    """Examples in an order of the pass, divided among worker processes."""

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(TOTAL, generator=torch.Generator().manual_seed(torch.randint(99, ()).item())).tolist()
        info = torch.utils.data.get_worker_info()
        if info:
            order = list(range(info.id, TOTAL, info.num_workers))
            random.shuffle(order)
        yield from order


class Noted(DataLoader):  # type: ignore[misc,unused-ignore]
    """A loader that notes its batches, by its sampler, and has the attributes of something else as well."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.inner = SimpleNamespace(notes="noted")

    def __iter__(self) -> Iterator[Any]:
        for (batch,) in super().__iter__():
            yield (batch, self.notes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class ByItself(DataLoader):  # type: ignore[misc,unused-ignore]
    """A loader that goes by its data set, not by its sampler."""

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(TOTAL).tolist()
        for place in range(len(self)):
            yield default_collate(
                [self.dataset[index] for index in order[place * self.batch_size :][: self.batch_size]]
            )


class Cached(DataLoader):  # type: ignore[misc,unused-ignore]
    """A loader that has its batches of the first pass in all of them."""

    cache: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.cache = self.cache or list(super().__iter__())
        yield from self.cache


class Plain:
    """An iterable that knows nothing of PyTorch."""

    def __iter__(self) -> Iterator[tuple[list[int]]]:
        order = list(range(TOTAL))
        np.random.shuffle(order)
        yield from ((order[start : start + 4],) for start in range(0, TOTAL, 4))


def loader(**options: Any) -> Callable[[], Any]:
    return lambda: DataLoader(DATA, **{"batch_size": 4, **options})


def sampled(make: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    return lambda: DataLoader(DATA, **{"batch_size": 4, **options}, sampler=make())


#: Loaders that have each example once in a pass, in another order in each.
FORMS: dict[str, Callable[[], Any]] = {
    "shuffle": loader(shuffle=True),
    "generator": lambda: DataLoader(
        DATA, 4, shuffle=True, generator=torch.Generator().manual_seed(random.getrandbits(9))
    ),
    "one by one": sampled(lambda: RandomSampler(DATA), batch_size=None),
    "subset": sampled(lambda: SubsetRandomSampler(range(TOTAL), torch.Generator())),
    "weights": sampled(lambda: WeightedRandomSampler(torch.arange(1.0, TOTAL + 1), TOTAL, replacement=False)),
    "python": sampled(lambda: Shuffled(random)),
    "numpy": sampled(lambda: Shuffled(np.random)),
    "python's generator": sampled(lambda: Shuffled(random.Random())),
    "numpy's generator": sampled(lambda: Shuffled(np.random.default_rng())),
    "numpy's old generator": sampled(lambda: Shuffled(np.random.RandomState())),
    "indices in batches": sampled(lambda: BatchSampler(RandomSampler(DATA), 4, False), batch_size=None),
    "batches": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False)),
    "own batches": lambda: DataLoader(DATA, batch_sampler=Pairs()),
    "subclass": lambda: Noted(DATA, 4, shuffle=True),
    "by itself": lambda: ByItself(DATA, 4),
    "stream": lambda: DataLoader(Stream(), 4),
    "stream one by one": lambda: DataLoader(Stream(), None),
    "iterable": Plain,
}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_each_example_comes_once_a_pass_and_in_another_order_each_pass(form: str, number: int) -> None:
    found = parts(FORMS[form], number)
    seen = []
    for _ in range(3):
        batches = passes(found)
        assert len({len(own) for own in batches}) == 1, "all take as many steps"
        examples = [flat(own) for own in batches]
        assert {example for own in examples for example in own} == set(range(TOTAL))
        twice = sum(map(len, examples)) - TOTAL
        largest = max(len(batch) if isinstance(batch, list) else 1 for own in batches for batch in own)
        assert twice < number * largest, "no more than fill up the last step"
        seen.append(examples)
    assert seen[0] != seen[1] != seen[2] != seen[0]
    for part in found:
        part.set_epoch(1)
    assert [flat(own) for own in passes(found)] == seen[1]


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_left_early_counts(form: str) -> None:
    (part,) = parts(FORMS[form], 1)
    begun = [
        flat(numbers(itertools.islice(part, 3))),
        flat(numbers(batch for batch, _ in zip(part, range(3), strict=False))),
        flat(numbers(itertools.islice(part, 3))),
    ]
    one, other = iter(part), iter(part)  # two at once
    begun += map(flat, zip(*[numbers([next(one), next(other)]) for _ in range(3)], strict=True))
    assert len({tuple(order) for order in begun}) == len(begun)


def test_five_passes_left_early_have_most_of_the_examples() -> None:
    (part,) = parts(DataLoader(TensorDataset(torch.arange(1000)), 10, shuffle=True), 1)
    seen = {number for _ in range(5) for number in flat(numbers(itertools.islice(part, 20)))}
    assert len(seen) > 600


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("drop_last", "own"), [(False, 6), (True, 5)])
def test_workers_have_other_examples_and_as_many(shuffle: bool, drop_last: bool, own: int) -> None:
    data = TensorDataset(torch.arange(17))
    found = parts(DataLoader(data, batch_size=2, shuffle=shuffle, drop_last=drop_last), 3, seed=4)
    first = passes(found)
    assert {len(flat(batches)) for batches in first} == {own - own % 2 if drop_last else own}
    assert len(found[0]) == len(first[0])
    if not drop_last:
        assert {example for batches in first for example in flat(batches)} == set(range(17))
    assert (first == passes(found)) != shuffle
    for part in found:
        part.set_epoch(0)
    assert passes(found) == first


@given(total=st.integers(0, 40), batch=st.integers(1, 7), number=st.integers(1, 6), drop_last=st.booleans())
@settings(deadline=None, max_examples=60)
def test_in_order_it_is_what_pytorch_gives_its_own_replicas(
    total: int, batch: int, number: int, drop_last: bool
) -> None:
    data = TensorDataset(torch.arange(total))
    found = parts(DataLoader(data, batch, drop_last=drop_last), number)
    other = [DistributedSampler(data, number, rank, shuffle=False, drop_last=drop_last) for rank in range(number)]
    if total and total >= number:  # fewer it cannot divide
        assert passes(found) == [numbers(DataLoader(data, batch, sampler=one, drop_last=drop_last)) for one in other]
    assert [len(part) for part in found] == [len(list(part)) for part in found]


@given(total=st.integers(0, 30), number=st.integers(1, 5), drop_last=st.booleans(), indices=st.booleans())
@settings(deadline=None, max_examples=60)
def test_what_comes_in_batches_is_filled_up_or_left_out(
    total: int, number: int, drop_last: bool, indices: bool
) -> None:
    batches = [[2 * place, 2 * place + 1] for place in range(total)]
    data = TensorDataset(torch.arange(2 * total))
    whole = type("Whole", (list,), {"drop_last": drop_last})(batches)
    found = parts(DataLoader(data, batch_sampler=whole) if indices else whole, number)
    own = [[flat(numbers([batch])) if indices else batch for batch in part] for part in found]
    steps = total // number if drop_last else -(-total // number)
    assert [len(some) for some in own] == [len(part) for part in found] == [steps] * number
    for place, batch in enumerate(batches[: steps * number]):
        assert own[place % number][place // number] == batch


def test_the_batches_are_those_of_the_batch_sampler() -> None:
    found = parts(DataLoader(DATA, batch_sampler=[[1, 2, 3], [4], [5, 6]]), 2)
    assert passes(found) == [[[1, 2, 3], [5, 6]], [[4], [1, 2, 3]]]
    found = parts(DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, True)), 2)
    assert passes(found) == [
        [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]],
        [[1, 3, 5, 7], [9, 11, 13, 15], [17, 19, 21, 23]],
    ]


def test_a_worker_alone_has_all() -> None:
    data = DataLoader(TensorDataset(torch.arange(7)), batch_size=3)
    assert passes(parts(data, 1)) == [[[0, 1, 2], [3, 4, 5], [6]]]


def test_of_few_examples_each_worker_has_as_many() -> None:
    assert passes(parts(DataLoader(TensorDataset(torch.arange(0)), batch_size=2), 2)) == [[], []]
    assert passes(parts(DataLoader(TensorDataset(torch.arange(1)), batch_size=2), 3)) == [[[0]], [[0]], [[0]]]
    assert passes(parts([[5]], 3)) == [[5]] * 3


def test_samplers_that_draw_some_examples_are_divided() -> None:
    data = TensorDataset(torch.arange(100))
    found = parts(lambda: DataLoader(data, 2, sampler=RandomSampler(data, num_samples=12)), 2)
    own = [flat(batches) for batches in passes(found)]
    assert [len(some) for some in own] == [6, 6]
    assert len({*own[0], *own[1]}) == 12, "the same twelve are divided"
    found = parts(lambda: DataLoader(data, 2, sampler=RandomSampler(data, replacement=True)), 2)
    assert [len(flat(batches)) for batches in passes(found)] == [50, 50]


def test_a_sampler_without_end_is_drawn_from_as_one_goes() -> None:
    found = parts(DataLoader(DATA, batch_size=3, sampler=itertools.cycle(range(10))), 2)
    assert numbers(itertools.islice(found[0], 3)) == [[0, 2, 4], [6, 8, 0], [2, 4, 6]]
    with pytest.raises(TypeError):
        len(found[0])
    (part,) = parts(DataLoader(DATA, batch_size=3, sampler=itertools.cycle(range(10))), 1)
    assert numbers(itertools.islice(part, 2)) + numbers(itertools.islice(part, 1)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    found = parts(DataLoader(DATA, batch_sampler=itertools.repeat([3])), 2)
    assert numbers(itertools.islice(found[1], 2)) == [[3], [3]]


@pytest.mark.parametrize("form", [form for form in FORMS if form not in {"subclass", "by itself"}])
def test_random_numbers_of_the_script_are_not_touched(form: str) -> None:
    (part,) = parts(FORMS[form], 1)
    if isinstance(part, DataLoader):  # which draws a seed for its processes itself
        part = part.sampler if part.batch_sampler is None else part.batch_sampler
    drawn = []
    for take in (0, 5):
        torch.manual_seed(5), random.seed(5), np.random.seed(5)  # type: ignore[func-returns-value]
        np.random.normal()
        list(itertools.islice(part, take))
        drawn.append((torch.rand(3).tolist(), random.random(), np.random.normal(), np.random.random()))
    assert drawn[0] == drawn[1]


def test_seeds_and_passes_give_orders_of_their_own() -> None:
    orders = set()
    for seed, number in itertools.product([-1, 0, 1, 2, 2**40], [0, 1, 2, 1_000_003, 2**31, -1]):
        (part,) = parts(DataLoader(DATA, TOTAL, shuffle=True), 1, seed=seed)
        part.set_epoch(number)
        orders.add(tuple(flat(numbers(part))))
    assert len(orders) == 30


def test_the_loader_stays_as_it_is() -> None:
    whole = DataLoader(DATA, 4, shuffle=True, collate_fn=default_collate)
    (part,) = parts(whole, 1)
    assert isinstance(whole.sampler, RandomSampler)
    assert len(list(part)) == len(list(whole)) == 7
    assert isinstance(part, DataLoader)
    assert (part.dataset, part.batch_size, part.drop_last, part.collate_fn) == (DATA, 4, False, default_collate)


def test_a_loader_of_a_subclass_iterates_in_its_own_way() -> None:
    found = parts(lambda: Noted(DATA, 4), 2)
    assert [note for part in found for _, note in part] == ["noted"] * 8
    assert (len(found[0]), found[0].batch_size, found[0].dataset) == (4, 4, DATA)
    for _ in range(2):
        assert {example for part in found for batch, _ in part for example in batch.tolist()} == set(range(TOTAL))
    found = parts(lambda: ByItself(DATA, 4), 2)
    assert [len(part) for part in found] == [len(list(part)) for part in found] == [4, 4]
    (one, other) = parts(lambda: Cached(DATA, 4), 2)
    assert numbers(one) == numbers(one) != numbers(other)


def test_the_number_of_a_pass_reaches_what_wants_to_know_it() -> None:
    class Set(Dataset[int]):
        epoch: Any = None

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    class Ordered(Set, Sampler[int]):  # type: ignore[misc,unused-ignore]
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    for form in ("sampler", "batch_sampler"):
        data, order = Set(), Ordered()
        options = {form: order if form == "sampler" else BatchSampler(order, 2, False)}
        (part,) = parts(DataLoader(data, **options), 1)
        part.set_epoch(6)
        assert (data.epoch, order.epoch) == (6, 6)
        part.batch_sampler.sampler.set_epoch(7)  # as Lightning does
        assert order.epoch == 7


def test_workers_that_are_threads_draw_the_same_orders() -> None:
    shuffled = parts(lambda: DataLoader(DATA, 4, shuffle=True), 4)
    own_batches = [part.batch_sampler for part in parts(lambda: DataLoader(DATA, batch_sampler=Pairs()), 4)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            for draw, some in ((numbers, shuffled), (list, own_batches)):
                found = list(threads.map(draw, some))
                assert {example for batches in found for example in flat(batches)} == set(range(TOTAL))


def test_a_batch_that_comes_again_is_whole() -> None:
    found = parts([{"labels": place} for place in range(3)], 2)
    assert [batch.pop("labels") for batch in found[1]] == [1, 1]


def test_a_loader_that_limits_its_steps_has_as_many() -> None:
    class Limited(DataLoader):  # type: ignore[misc,unused-ignore]
        def __iter__(self) -> Iterator[Any]:
            return itertools.islice(super().__iter__(), len(self))

        def __len__(self) -> int:
            return 2

    (part, _) = parts(Limited(DATA, 4, shuffle=True), 2)
    assert len(list(part)) == len(part) == 2


def test_what_is_divided_already_is_refused() -> None:
    whole = DataLoader(DATA, 4, sampler=DistributedSampler(DATA, num_replicas=2, rank=0))
    with pytest.raises(ConfigurationError, match="DistributedSampler gives each of 2 replicas a part already"):
        parts(whole, 2)
    with pytest.raises(ConfigurationError, match="DistributedSampler gives"):
        parts(DataLoader(DATA, batch_sampler=BatchSampler(whole.sampler, 2, False)), 2)
    for again in (DataLoader(DATA, 4), DataLoader(Stream(), 4), Plain()):
        (part,) = parts(again, 1)
        with pytest.raises(ConfigurationError, match="once"):
            parts(part, 2)
    alone = DataLoader(DATA, 4, sampler=DistributedSampler(DATA, num_replicas=1, rank=0))
    one, other = passes(parts(alone, 2))
    assert sorted(flat(one + other)) == list(range(TOTAL))


def test_a_loader_that_keeps_an_iterator_is_refused() -> None:
    class Forever(DataLoader):  # type: ignore[misc,unused-ignore]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.iterator = super().__iter__()

    with pytest.raises(ConfigurationError, match="persistent_workers=True"):
        parts(Forever(DATA, 4, shuffle=True), 2)


def test_who_trains_is_read_when_a_pass_begins() -> None:
    worker: Any = SimpleNamespace(rank=0, num_workers=1)
    part = shard(DataLoader(DATA, 4), worker)
    assert flat(numbers(part)) == list(range(TOTAL))
    worker.num_workers = 2
    assert flat(numbers(part)) == list(range(0, TOTAL, 2))
    worker.rank = 3
    with pytest.warns(UserWarning, match="rank 3 is not below the number of workers, 2"):
        assert flat(numbers(part)) == list(range(1, TOTAL, 2))


def test_states_are_restored_when_a_sampler_fails() -> None:
    class Fails(Shuffled):
        def __iter__(self) -> Iterator[int]:
            yield torch.randint(9, ()).item()
            raise OSError("no index file")

    (part,) = parts(DataLoader(DATA, 4, sampler=Fails(None)), 1)
    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    with pytest.raises(OSError, match="no index file"):
        list(part.sampler)
    assert torch.rand(2).tolist() == expected


def test_parts_are_copied_with_their_worker() -> None:
    class Worker:
        rank, num_workers = 1, 2

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("a worker has sockets")

    worker: Any = Worker()
    for whole in (DataLoader(DATA, 4, shuffle=True), DataLoader(Stream(), 4), Plain()):
        part = shard(whole, worker)
        copied = copy.deepcopy(part)
        assert numbers(copied) == numbers(part)
        copied.set_epoch(0)
        assert numbers(copied) != numbers(part)


@pytest.mark.parametrize("persistent", [False, True])
def test_loaders_with_processes_give_the_same(persistent: bool) -> None:
    options = {
        "num_workers": 2,
        "persistent_workers": persistent,
        "prefetch_factor": 3,
        "multiprocessing_context": "fork",
        "worker_init_fn": int,
        "timeout": 60,
    }
    some = parts(lambda: DataLoader(DATA, 4, shuffle=True, **options), 2)
    plain = parts(lambda: DataLoader(DATA, 4, shuffle=True), 2)
    for part in (*some, *plain):
        next(iter(part))  # left early
    assert passes(some) == passes(plain)
    assert passes(some) == passes(plain)
    streams = parts(lambda: DataLoader(Stream(), 4, **options), 2)
    first, second = passes(streams), passes(streams)
    for found in (first, second):
        assert set(flat(found[0] + found[1])) == set(range(TOTAL))
        assert len(found[0]) == len(found[1]) == 4
    assert first != second


def test_accelerate_takes_a_part_and_its_loaders_can_be_divided() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    plain = passes(parts(loader(shuffle=True), 2))
    assert passes([accelerator.prepare(part) for part in parts(loader(shuffle=True), 2)]) == plain
    found = parts(lambda: accelerator.prepare(DataLoader(DATA, 4, shuffle=True)), 2)
    assert passes(found) == plain
    assert passes(found) != plain
    for part in found:
        part.set_epoch(0)
    assert passes(found) == plain
    assert [len(part) for part in found] == [4, 4]
