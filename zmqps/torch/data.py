"""Which batches are a worker's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from zmqps.worker import Worker


class Shard(Iterable[Any]):
    """A worker's part of the batches, made by `shard`."""

    def __init__(self, loader: Any, worker: Worker, seed: int) -> None:
        self._worker = worker
        self._sampler: _Part | None = None
        self._loader = loader
        if isinstance(loader, DataLoader) and isinstance(loader.batch_sampler, BatchSampler):
            sampler = loader.batch_sampler.sampler
            if isinstance(sampler, SequentialSampler) or (
                isinstance(sampler, RandomSampler)
                and not sampler.replacement
                and sampler.num_samples == len(sampler.data_source)
            ):
                self._sampler = _Part(sampler, worker, seed)
                self._loader = _with_sampler(loader, self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """Say which pass is next; by default each has the number after the one before."""
        if self._sampler is not None:
            self._sampler.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        if self._sampler is not None:
            yield from self._loader
            self._sampler.epoch += 1
            return
        rank, number = self._worker.rank, self._worker.num_workers
        mine: Any = None
        for place, batch in enumerate(self._loader):
            if place % number == rank:
                mine = batch
            if place % number == number - 1:  # else others would have none
                yield mine

    def __len__(self) -> int:
        assert isinstance(self._loader, Sized)
        return len(self._loader) if self._sampler is not None else len(self._loader) // self._worker.num_workers


def shard(loader: Iterable[Any], worker: Worker, *, seed: int = 0) -> Shard:
    """Return this worker's part of a loader: as many batches for each worker, none of them for two.

    Of a ``DataLoader`` that goes through a data set in its order, or shuffles it, each worker gets other examples, in
    batches of the same size: a step of n workers is one of n batches. That is what ``DistributedSampler`` does; all
    workers shuffle alike, by the seed and the number of the pass. Examples at the end that are not enough for all are
    left out where the loader has ``drop_last``, else the first ones fill them up. Of any other iterable each worker
    gets each n-th batch, so it must be in the same order on all; a rest of fewer than n batches is left out.

    Who is there is asked when a pass begins. `zmqps.Worker.ranges` hands examples out as workers ask instead, which
    loses none when one of them dies.

    Parameters
    ----------
    loader : iterable
        ``torch.utils.data.DataLoader``, say.
    worker : Worker
        Its rank and number count.
    seed : int
        For shuffling: the same on all workers.
    """
    return Shard(loader, worker, seed)


class _Part(Sampler[int]):  # type: ignore[misc,unused-ignore]
    """A worker's part of the examples of a pass."""

    def __init__(self, sampler: RandomSampler | SequentialSampler, worker: Worker, seed: int) -> None:
        self._whole = sampler
        self._worker = worker
        self._seed = seed
        self.epoch = 0
        self.batch_size: int | None = None
        self.drop_last = False

    def _length(self) -> tuple[int, int]:
        """Return how many examples there are for all workers, and how many of them are each one's."""
        total, number = len(self._whole), self._worker.num_workers
        return total, total // number if self.drop_last else -(-total // number)

    def __len__(self) -> int:
        return self._length()[1]

    def __iter__(self) -> Iterator[int]:
        total, own = self._length()
        rank, number = self._worker.rank, self._worker.num_workers
        if isinstance(self._whole, RandomSampler):
            generator = torch.Generator()
            generator.manual_seed(self._seed * 1_000_003 + self.epoch)
            order = torch.randperm(total, generator=generator).tolist()
        else:
            order = list(self._whole)
        yield from (order[(place * number + rank) % total] for place in range(own))


def _with_sampler(loader: DataLoader[Any], sampler: _Part) -> DataLoader[Any]:
    """Return a loader like another one, with another sampler."""
    sampler.drop_last = loader.drop_last
    more: dict[str, Any] = {}
    if loader.num_workers:
        more = {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers}
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        **more,
    )
