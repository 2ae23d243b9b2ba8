"""The rows of a layer in a model: pulled for a forward pass, their gradients kept as those of a parameter."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch

from zmqps import checks
from zmqps.errors import ConfigurationError
from zmqps.rows.unique import different, spread, summed
from zmqps.worker import Worker

if TYPE_CHECKING:
    from zmqps.client.sparse.cache_options import CacheOptions
    from zmqps.client.sparse.tables import TableOptions

Array = np.ndarray[Any, np.dtype[Any]]
#: Batches whose rows a layer remembers within a step, for a forward pass that `backward` runs again.
NUM_REMEMBERED = 4


class TableRows(torch.nn.Parameter):  # type: ignore[misc,unused-ignore]
    """A layer's rows that gradients were found for since ``zero_grad``: their gradients are its ``grad``.

    So ``zero_grad``, clipping and ``GradScaler`` treat them as those of any parameter. Its own shape is ``(n, dim)``
    between ``backward`` and ``step``, else ``(0, dim)``. It is not a parameter of the job.
    """

    of_table = True


def is_rows(parameter: torch.Tensor) -> bool:
    """Return whether a parameter of a model is that of a layer whose rows are in a table."""
    return isinstance(parameter, TableRows)


class _Ids(NamedTuple):
    """The ids of a batch: as they came, each once, and which of these each was."""

    flat: Array
    once: Array
    places: Array

    @classmethod
    def of(cls, ids: torch.Tensor) -> _Ids:
        """Return ids in memory that has no other writer."""
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ConfigurationError(f"ids are integers, not {ids.dtype}")
        flat = ids.detach().reshape(-1).to("cpu", torch.int64, copy=True).numpy()
        once, _, places = different(flat, 0)
        return cls(flat, once, places)

    def are(self, others: _Ids) -> bool:
        """Return whether both are of the same batch."""
        return np.array_equal(self.flat, others.flat)


class Coming(NamedTuple):
    """Rows that were asked for before they are needed."""

    ids: _Ids
    future: Future[Any]
    part: slice | None = None  # of the rows that the push of a step has asked for; its errors are the step's

    @property
    def has_failed(self) -> bool:
        """Whether a step has failed with it; waits for that."""
        return self.part is not None and self.future.exception() is not None

    @property
    def rows(self) -> Array:
        """The rows, once they are there."""
        found: Array = self.future.result()
        return found if self.part is None else found[self.part]


class _Way:
    """A layer's way to its table: the worker, and what is under way.

    Parameters
    ----------
    worker
        Of the job that has the table.
    deferred
        Whether gradients wait for the step.
    copied
        Whether the layer is a copy of the one that is trained, and only reads.
    """

    def __init__(self, worker: Worker, *, deferred: bool, copied: bool = False) -> None:
        self.worker = worker
        self.deferred = deferred
        self.copied = copied
        self.has_cache = copied  # the worker has been informed of it
        self.used = False  # by a forward pass since the last step
        self.sent: list[Future[None]] = []
        self.wanted: _Ids | None = None
        self.coming: Coming | None = None
        self.recent: deque[tuple[_Ids, Array]] = deque(maxlen=NUM_REMEMBERED)

    def pull(self, table: Any, ids: _Ids, *, remember: bool) -> Array:
        """Return the rows of different ids, ``(n, dim)``; where `backward` runs a forward pass again, those it had."""
        if torch._C._current_graph_task_id() != -1:
            for known, rows in self.recent:
                if known.are(ids):
                    return rows
        coming, self.coming = self.coming, None
        is_there = coming is not None and coming.ids.are(ids) and not coming.has_failed
        found: Array = coming.rows if coming is not None and is_there else table.pull(ids.once)
        if remember:
            self.recent.append((ids, found))
        return found


class Rows(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """What the modules have in common: rows for a forward pass, and what becomes of their gradients."""

    def __init__(
        self, name: str, table: TableOptions, *, padding_idx: int | None = None, cache: CacheOptions | None = None
    ) -> None:
        super().__init__()
        checks.name("a table's name", name)
        self.name, self.table, self.cache = name, table, cache
        self.dim = table.named(name).dim
        self.padding_idx = padding_idx
        self.rows = TableRows(torch.empty(0, self.dim))
        self._way: _Way | None = None
        self._ids: Array | None = None  # of the rows that `rows` has
        self._was_zero = False  # their gradient, when `backward` found it
        self._version = 0  # of `rows`, when they came there

    def attach(self, worker: Worker, *, deferred: bool = False) -> None:
        """Let it use a worker; called by `tables` and `zmqps.torch.Optimizer`.

        Parameters
        ----------
        worker : Worker
            Of the job that has the table.
        deferred : bool
            Keep gradients until `take`, instead of pushing them in ``backward``.
        """
        self._way = _Way(worker, deferred=deferred)

    def _connected(self) -> tuple[_Way, Any]:
        """Return the way to the table, and the table."""
        way = self._way
        if way is None:
            raise ConfigurationError(
                f"the embedding {self.name!r} has no worker: pass tables=zmqps.torch.tables(model, worker) to "
                "worker.init, or give the model to zmqps.torch.Optimizer"
            )
        found = way.worker.table(self.name, cache=None if way.has_cache else self.cache)
        way.has_cache = True
        return way, found

    def extra_repr(self) -> str:
        """Return the part of ``repr`` in brackets."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.name!r}, {self.dim}{padding}"

    # --- copies and files ----------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy and a file have: no worker, nothing that is under way, no gradients."""
        idle = TableRows(self.rows.new_empty(0, self.dim), self.rows.requires_grad)
        return {**self.__dict__, "_parameters": {**self._parameters, "rows": idle}, "_way": None, "_ids": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.rows = TableRows(self.rows.data, self.rows.requires_grad)  # which a file knows as a parameter

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy that reads rows by the same worker, and does not train them."""
        copy = memo[id(self)] = type(self).__new__(type(self))
        copy.__setstate__(deepcopy(self.__getstate__(), memo))
        memo[id(self.rows)] = copy.rows
        if self._way is not None:
            copy._way = _Way(self._way.worker, deferred=self._way.deferred, copied=True)
        return copy

    def __prepare_scriptable__(self) -> None:
        raise ConfigurationError(f"the embedding {self.name!r} asks servers for its rows, which torch.jit cannot")

    def _replicate_for_data_parallel(self) -> None:
        raise ConfigurationError(
            f"the embedding {self.name!r} has one copy a process: use DistributedDataParallel, with a worker in each"
        )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}rows"]  # checkpoints of the cluster have them

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)
        missing[:] = [key for key in missing if key != f"{prefix}rows"]

    # --- forward -------------------------------------------------------------------------------

    def prefetch(self, ids: torch.Tensor) -> None:
        """Ask for the rows of the next batch; the next forward pass with exactly these ids takes them.

        With `zmqps.torch.Optimizer`, between a forward pass and ``step``, they come with the step's update:
        asynchronous in one round trip with its gradients, else as soon as the step is over. Otherwise they are asked
        for at once, and what is pushed meanwhile may not be in them; they are forgotten when a step is pushed.

        Parameters
        ----------
        ids : tensor of integers
            Of any shape.
        """
        way, table = self._connected()
        wanted = _Ids.of(ids)
        if way.deferred and way.used:
            way.wanted = wanted
        else:
            way.coming = Coming(wanted, table.pull_async(wanted.once))

    def take_wanted(self) -> _Ids | None:
        """Return what `prefetch` has requested, and forget it."""
        way, _ = self._connected()
        wanted, way.wanted = way.wanted, None
        return wanted

    def follow(self, coming: Coming | None) -> None:
        """A step is in flight, with a request for what is ``coming``; request the rest of what `prefetch` was given."""
        way, table = self._connected()
        self.rows.data = self.rows.new_empty(0, self.dim)
        way.used, way.coming = False, coming  # rows that were asked for before lack this step
        way.recent.clear()
        if (wanted := self.take_wanted()) is not None:
            way.coming = Coming(wanted, table.pull_async(wanted.once))

    def _look_up(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """Return rows ``(n, dim)``, which of them each id has, and which is that of ``padding_idx``.

        What `backward` finds for them goes to the table.
        """
        if torch.jit.is_tracing():
            self.__prepare_scriptable__()
        way, table = self._connected()
        self._check_written()
        self.synchronize()
        batch = _Ids.of(ids)
        rows = torch.from_numpy(way.pull(table, batch, remember=self.training)).to(ids.device)
        places = torch.from_numpy(batch.places).to(ids.device).reshape(ids.shape)
        if self.training and torch.is_grad_enabled() and self.rows.requires_grad:
            way.used = True
            rows.requires_grad_()

            def found(tensor: torch.Tensor) -> None:
                gradient, tensor.grad = tensor.grad, None
                if gradient is not None:
                    self._found(batch.once, tensor.detach(), gradient.detach())

            rows.register_post_accumulate_grad_hook(found)
        padding = np.flatnonzero(batch.once == self.padding_idx)
        return rows, places, int(padding[0]) if padding.size else None

    # --- backward ------------------------------------------------------------------------------

    def _found(self, ids: Array, values: torch.Tensor, gradient: torch.Tensor) -> None:
        """Keep the gradient of some rows, or push it."""
        way, table = self._connected()
        if way.copied:
            raise ConfigurationError(
                f"the embedding {self.name!r} is in a copy of a model, which reads rows and does not train them: train "
                "the model it was copied from, or give the copy to zmqps.torch.Optimizer with a worker of another job, "
                "from zmqps.connect(job=...)"
            )
        if self.padding_idx is not None and (real := ids != self.padding_idx).sum() < ids.size:
            at = torch.from_numpy(real).to(gradient.device)
            ids, values, gradient = ids[real], values[at], gradient[at]
        for hook in (self.rows._backward_hooks or {}).values():
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        if way.deferred:
            self._keep(ids, values, gradient)
        else:
            way.sent.append(table.push_async(ids, _array(gradient)))

    def _keep(self, ids: Array, values: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add the gradient of some rows to those of earlier passes."""
        kept = self._kept()
        if kept is not None:
            once, _, places = different(np.concatenate([kept[0], ids]), 0)
            at = torch.from_numpy(places).to(gradient.device)
            shape = once.size, self.dim
            known = self.rows.detach()  # none after a step
            values = values.new_zeros(shape).index_copy_(0, at[len(kept[0]) :], values)
            values.index_copy_(0, at[: len(known)], known)
            gradient = gradient.new_zeros(shape).index_add_(0, at, torch.cat([kept[1], gradient]))
            ids = once
        self.rows.grad = None  # whose shape is that of the data
        self.rows.data = values
        self.rows.grad = gradient
        self._ids, self._was_zero, self._version = ids, _is_zero(gradient), self.rows._version

    def _kept(self) -> tuple[Array, torch.Tensor] | None:
        """Return ids, and gradients as they are now; None: there are none, or they were zeroed."""
        gradient = self.rows.grad
        if self._ids is None or gradient is None or (_is_zero(gradient) and not self._was_zero):
            return None
        return self._ids, gradient

    def _check_written(self) -> None:
        """Raise if the rows were written since ``backward``: such writes would be lost."""
        if len(self.rows) and self.rows._version != self._version:
            raise ConfigurationError(
                f"the rows of {self.name!r} were written to after backward, and they are on the servers: set them "
                f"there by worker.table({self.name!r}).load; in a loop with tables(deferred=True), call take() before "
                "PyTorch's optimizer steps"
            )

    def gradients(self) -> tuple[Array, Array] | None:
        """Return ids, each once, and the gradients of their rows as ``rows.grad`` has them; None: none, or zeroed.

        Raises
        ------
        ConfigurationError
            ``rows`` were written since ``backward``.
        """
        kept = self._kept()
        if kept is None:
            return None
        self._check_written()
        return kept[0], _array(kept[1])

    def take(self) -> tuple[Array, Array] | None:
        """Return `gradients`, and forget them."""
        found = self.gradients()
        self.rows.grad, self.rows.data = None, self.rows.new_empty(0, self.dim)
        return found

    def synchronize(self) -> None:
        """Return when what ``backward`` has pushed is applied, or waits for its step; raise what has failed."""
        if self._way is not None:
            sent, self._way.sent = self._way.sent, []
            for future in sent:
                future.result()


class Gather(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """``torch.nn.functional.embedding`` of rows that all occur, in half the time."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.places, ctx.num_rows = places.reshape(-1).numpy(), len(rows)
        found = rows.new_empty(*places.shape, rows.shape[1])
        spread(rows.detach().numpy(), 0, ctx.places, found.reshape(-1, rows.shape[1]).numpy())
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        own = gradient.detach().reshape(ctx.places.size, gradient.shape[-1]).numpy()
        return torch.from_numpy(summed(own, ctx.places, ctx.num_rows)[0]), None


def _array(gradient: torch.Tensor) -> Array:
    found: Array = gradient.float().contiguous().cpu().numpy()
    return found


def _is_zero(gradient: torch.Tensor) -> bool:
    """Return whether all of it is zero; nearly always the first row says that it is not."""
    return not bool(gradient[:1].any()) and not bool(gradient.any())
