"""Dividing the batches of a loader among workers."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import random
import threading
import warnings
from collections.abc import Iterable, Iterator, MutableMapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from zmqps.errors import ConfigurationError
from zmqps.worker import Worker

#: How many indices, and batches of them, are drawn at once: exchanging random states for that takes some 0.2 ms.
AHEAD, AHEAD_BATCHES = 1024, 32
#: Samplers that draw from an attribute ``generator`` alone, or do not draw.
PLAIN = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
#: What a subclass of ``DataLoader`` overrides or adds where it may not go by its sampler, or counts passes itself.
OVERRIDES = ("__iter__", "_get_iterator", "set_epoch")
#: Seeds of successive passes are this far apart; an odd number, so 2**32 passes have different ones.
ODD = 0x9E3779B97F4A7C15
#: Held while random states of a pass are in force: workers may be threads of one process, which share generators.
_LOCK = threading.RLock()


class Shard(Iterable[Any]):
    """A worker's part of a loader or a sampler, made by `shard`; it has the attributes of the whole, too.

    A pass begins when its first item is read. Its number is one more than that of the previous pass, even if that one
    was not completed.
    """

    def __init__(self, whole: Any, worker: Worker, seed: int, *, drop_last: bool = False, ahead: int = 0) -> None:
        self._whole = whole
        self._worker = worker
        self._seed = seed
        self._drop_last = drop_last
        self._ahead = ahead  # how many indices are drawn at once; 0: these are batches of data, of which few are kept
        self._pass = 0
        self._num_begun = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass, also in samplers and data sets of the loader that have a `set_epoch`."""
        self._pass = int(epoch)
        _set_epoch(_with_epochs(self._whole), epoch)

    def __iter__(self) -> Iterator[Any]:
        rank, size = _place(self._worker)
        return _every_nth(self._drawn(), rank, size, drop_last=self._drop_last, indices=self._ahead > 0)

    def __len__(self) -> int:
        total, size = len(self._whole), self._worker.num_workers
        return total // size if self._drop_last else -(-total // size)

    def _drawn(self) -> Iterator[Any]:
        """Begin a pass, and yield what the whole does, with random numbers that are the same on all workers."""
        number = self._pass
        self._pass += 1
        self._num_begun += 1
        if type(self._whole) in PLAIN:
            yield from _with_generator(self._whole, _number(self._seed, number, 0))
            return
        ahead = 1 if isinstance(self._whole, Iterator) else self._ahead or 1  # an iterator continues in the next pass
        states = _PassStates(self._whole, self._seed, number)
        with states.in_force():
            items = iter(self._whole)
        while True:
            with states.in_force():
                some = list(islice(items, ahead))
            if not some:
                return
            yield from some

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # else copies would ask for the whole before they have it
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._whole, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shard:
        copied = memo[id(self)] = object.__new__(type(self))
        memo[id(self._worker)] = self._worker
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied


def shard(loader: Iterable[Any], worker: Worker, *, seed: int = 0) -> Any:
    """Return this worker's part of a loader: the same number of batches for each worker, and each example in one.

    Of a ``DataLoader`` with ``batch_size`` each worker gets every n-th index of the sampler, in batches of the same
    size: a step of n workers is one of n batches. ``DistributedSampler`` does the same, for its own order. Of a
    ``batch_sampler`` of another class than ``BatchSampler``, of an ``IterableDataset`` and of any other iterable, each
    worker gets every n-th batch; all workers load all batches of the latter two. With ``drop_last`` a remainder too
    small for all workers is left out; otherwise it is filled up with the first examples, or with a worker's first
    batch.

    Each pass has a number, and all workers draw its order by `seed` and this number. For the draw, the generators of
    PyTorch (on the CPU), NumPy and Python, and those that are attributes of loader and samplers, get a state for this
    pass, and are then restored. A sampler that seeds itself must do so in the same way on all workers. A pass left
    early counts. ``set_epoch(n)`` of the result, or of its sampler, sets the number of the next pass; a worker that
    joins later needs it.

    The rank and the number of workers are read when a pass begins. `zmqps.Worker.ranges` hands examples out as workers
    ask instead, and loses none when a worker dies.

    Parameters
    ----------
    loader : iterable
        A ``torch.utils.data.DataLoader`` of any form, which does not change, or any iterable of batches.
    worker : Worker
        Its rank and number count.
    seed : int
        For shuffling: the same on all workers.

    Returns
    -------
    DataLoader or Shard
        A ``DataLoader`` like the loader, of its class and with its own worker processes; a ``Shard`` of an
        ``IterableDataset``, of other iterables, and of loaders whose class has its own ``__iter__``.

    Raises
    ------
    ConfigurationError
        A sampler already divides the examples, such as ``DistributedSampler``, or the loader keeps an iterator.
    """
    _check_whole(loader)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return Shard(loader, worker, seed, drop_last=getattr(loader, "drop_last", False) is True)
    return _divided(loader, worker, seed)


def _divided(loader: Any, worker: Worker, seed: int) -> Any:
    """Return a loader like a ``DataLoader``, whose sampler is a part of the loader's."""
    inner = vars(loader).get("base_dataloader")  # Accelerate's loaders iterate over it
    if inner is not None:
        return _copy_with(loader, base_dataloader=_divided(inner, worker, seed))
    alone = loader.batch_sampler is None  # single indices, without batch_size
    whole = loader.sampler if alone else loader.batch_sampler
    drop_last = getattr(whole, "drop_last", False) is True
    if type(whole) is BatchSampler:  # as PyTorch makes one of batch_size
        indices = Shard(whole.sampler, worker, seed, drop_last=drop_last, ahead=AHEAD)
        part: Any = BatchSampler(indices, whole.batch_size, drop_last)
    else:
        part = indices = Shard(whole, worker, seed, drop_last=drop_last, ahead=AHEAD if alone else AHEAD_BATCHES)
    changes = {"sampler" if alone else "batch_sampler": part}
    if getattr(whole, "sampler", None) is loader.sampler:
        changes["sampler"] = part.sampler
    made = _copy_with(loader, **changes)
    if any(getattr(type(loader), name, None) is not getattr(DataLoader, name, None) for name in OVERRIDES):
        return _SubclassShard(loader, made, indices, worker, seed)
    vars(made)["set_epoch"] = functools.partial(_set_epoch, _with_epochs(made))
    return made


class _SubclassShard(Shard):
    """The part of a loader of a class that iterates in its own way: by its sampler, or else every n-th batch."""

    def __init__(self, loader: Any, divided: Any, indices: Shard, worker: Worker, seed: int) -> None:
        super().__init__(divided, worker, seed)
        self._undivided = Shard(loader, worker, seed, drop_last=loader.drop_last)
        self._indices = indices
        self._by_sampler: bool | None = None  # unknown before the first pass

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._undivided.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        if self._by_sampler is None:
            batches = iter(self._whole)
            first = list(islice(batches, 1))
            self._by_sampler = self._indices._num_begun > 0
            if self._by_sampler:
                yield from first
                yield from batches
                return
        yield from self._whole if self._by_sampler else self._undivided

    def __len__(self) -> int:
        divided = len(self._whole)
        if self._by_sampler is None:
            return divided if divided != len(self._undivided._whole) else len(self._undivided)
        return divided if self._by_sampler else len(self._undivided)


class _PassStates:
    """The states in which all that draws random numbers is during a pass, and at no other time."""

    def __init__(self, whole: Any, seed: int, number: int) -> None:
        self._sources = _random_sources(whole)
        self._numbers = [_number(seed, number, index) for index in range(len(self._sources))]
        self._own: list[Any] | None = None

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Exchange the states, continue where the pass was, and restore them."""
        with _LOCK:
            others = [_state(source) for source in self._sources]
            try:
                if self._own is None:
                    for source, number in zip(self._sources, self._numbers, strict=True):
                        _seed(source, number)
                else:
                    _set_states(self._sources, self._own)
                yield
            finally:
                self._own = [_state(source) for source in self._sources]
                _set_states(self._sources, others)


def _with_generator(sampler: Any, number: int) -> Any:
    """Return a plain sampler like another one, with its own generator, from which no other thread draws."""
    made = copy.copy(sampler)
    given = [getattr(sampler, name, None) for name in ("generator", "weights")]
    device = next((one.device for one in given if one is not None), "cpu")
    made.generator = torch.Generator(device).manual_seed(number)
    return made


def _every_nth(items: Iterable[Any], rank: int, size: int, *, drop_last: bool, indices: bool) -> Iterator[Any]:
    """Yield the items of one rank: of each `size` one, once all of these are there, so that all have as many."""
    if size == 1:
        yield from items
        return
    first: list[Any] = []  # of batches of data only this worker's own, or the very first one: they may be large
    mine: Any = None
    place = -1
    for place, item in enumerate(items):
        if indices and place < size:
            first.append(item)
        elif not (indices or drop_last) and place in {0, rank}:
            first = [copy.copy(item) if isinstance(item, MutableMapping | list) else item]  # loops pop labels from it
        if place % size == rank:
            mine = item
        if place % size == size - 1:
            yield mine
    rest = (place + 1) % size
    if rest and not drop_last:
        yield mine if rank < rest else first[(rank - rest) % len(first)]


def _place(worker: Worker) -> tuple[int, int]:
    """Return a worker's rank and the number of workers."""
    rank, size = worker.rank, worker.num_workers
    if rank >= size:
        warnings.warn(
            f"rank {rank} is not below the number of workers, {size}, since others were lost or have left: this pass "
            "has some examples twice and misses others; worker.ranges hands out each of them",
            stacklevel=3,
        )
    return rank % size, size


def _check_whole(loader: Any) -> None:
    """Raise an error where the loader's examples are a part of all already, or cannot be divided."""
    for node in _nested(loader):
        if isinstance(node, Shard):
            raise ConfigurationError("the loader is a worker's part already: call zmqps.torch.shard once")
        number = getattr(node, "num_replicas", getattr(node, "num_processes", 1))
        if isinstance(node, Sampler) and isinstance(number, int) and number > 1:
            raise ConfigurationError(
                f"the loader's {type(node).__name__} gives each of {number} replicas a part already: leave it out, and "
                "let zmqps.torch.shard divide the examples; or leave shard out, and give it "
                "num_replicas=worker.num_workers and rank=worker.rank"
            )
    kept = [
        name for name, value in _attributes(loader) if isinstance(value, _BaseDataLoaderIter) and name != "_iterator"
    ]
    if kept:
        raise ConfigurationError(
            f"{type(loader).__name__} keeps an iterator with its own order, {kept[0]}, which zmqps.torch.shard "
            "cannot divide: use a DataLoader with persistent_workers=True, which keeps its processes as well"
        )


def _copy_with(loader: Any, **changes: Any) -> Any:
    """Return a loader like another one, but for some attributes; `DataLoader` does not allow setting them."""
    made = object.__new__(type(loader))  # not copy.copy, which would ask a subclass's __getattr__
    vars(made).update(vars(loader), _iterator=None, **changes)
    return made


def _attributes(node: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in (getattr(node, "__dict__", None) or {}).items() if isinstance(name, str)]


def _nested(whole: Any) -> list[Any]:
    """Return an object and the loaders, samplers and data sets in it."""
    found: list[Any] = []
    ahead = [whole]
    while ahead:
        node = ahead.pop()
        if any(node is other for other in found):
            continue
        found.append(node)
        for name, value in _attributes(node):
            if isinstance(value, Sampler | DataLoader | Shard) or "sampler" in name or name == "dataset":
                ahead.append(value)
            elif isinstance(value, list | tuple | dict) and value:
                some = value.values() if isinstance(value, dict) else value
                if isinstance(next(iter(some)), Sampler):  # not many indices or examples, each to be looked at
                    ahead += some
    return found


def _with_epochs(whole: Any) -> list[Any]:
    return [node for node in _nested(whole) if callable(getattr(node, "set_epoch", None))]


def _set_epoch(nodes: list[Any], epoch: int) -> None:
    for node in nodes:
        node.set_epoch(epoch)


def _random_sources(whole: Any) -> list[Any]:
    """Return all that may draw random numbers for an object."""
    found: list[Any] = [torch.default_generator, random, np.random]
    kinds = torch.Generator | random.Random | np.random.RandomState | np.random.Generator
    for node in _nested(whole):
        for _, value in _attributes(node):
            if isinstance(value, kinds) and not isinstance(value, random.SystemRandom):
                found += () if any(value is other for other in found) else (value,)
    return found


def _state(source: Any) -> Any:
    if isinstance(source, np.random.Generator):
        return source.bit_generator.state
    return source.get_state() if hasattr(source, "get_state") else source.getstate()


def _set_states(sources: list[Any], states: list[Any]) -> None:
    for source, state in zip(sources, states, strict=True):
        if isinstance(source, np.random.Generator):
            source.bit_generator.state = state
        else:
            (source.set_state if hasattr(source, "set_state") else source.setstate)(state)


def _seed(source: Any, number: int) -> None:
    """Seed what draws random numbers with one of 64 bits."""
    if isinstance(source, torch.Generator):
        source.manual_seed(number)
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = type(source.bit_generator)(number).state
    elif isinstance(source, np.random.RandomState) or source is np.random:
        source.seed([number % 2**32, number >> 32])
    else:
        source.seed(number)


def _number(seed: int, number: int, index: int) -> int:
    """Return 64 bits for a pass and one of what draws in it; no two passes share the low 32, all that PyTorch takes."""
    start = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return (int.from_bytes(start, "little") + number * ODD) % 2**64
