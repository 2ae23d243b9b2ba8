"""Embeddings whose rows are those of a sparse table on the servers: modules without weights of their own."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zmqps import checks
from zmqps.errors import ConfigurationError
from zmqps.worker import Worker

if TYPE_CHECKING:
    from zmqps.client.cache_options import CacheOptions
    from zmqps.client.tables import TableOptions

Array = np.ndarray[Any, np.dtype[Any]]
#: How the rows of a bag become one.
MODES = ("sum", "mean")


class _Rows(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """What the modules have in common: rows for a forward pass, and what becomes of their gradients."""

    def __init__(
        self, name: str, table: TableOptions, *, padding_idx: int | None = None, cache: CacheOptions | None = None
    ) -> None:
        super().__init__()
        checks.name("a table's name", name)
        self.name, self.table, self.cache = name, table, cache
        self.dim = table.named(name).dim
        self.padding_idx = padding_idx
        self._worker: Worker | None = None
        self._deferred = False
        self._has_cache = False  # the worker has been told of it
        self._used = False  # by a forward pass since the last step
        self._pending: list[tuple[Array, Array]] = []
        self._sent: list[Future[None]] = []
        self._wanted: Array | None = None
        self._coming: tuple[Array, Future[Any]] | None = None

    def attach(self, worker: Worker, *, deferred: bool = False) -> None:
        """Let it use a worker; called by `tables` and `zmqps.torch.Optimizer`.

        Parameters
        ----------
        worker : Worker
            Of the job that has the table.
        deferred : bool
            Keep gradients until `take`, instead of pushing them in ``backward``.
        """
        self._worker, self._deferred, self._has_cache = worker, deferred, False

    def _table(self) -> Any:
        if self._worker is None:
            raise ConfigurationError(
                f"the embedding {self.name!r} has no worker: pass tables=zmqps.torch.tables(model, worker) to "
                "worker.init, or give the model to zmqps.torch.Optimizer"
            )
        found = self._worker.table(self.name, cache=None if self._has_cache else self.cache)
        self._has_cache = True
        return found

    def extra_repr(self) -> str:
        """Say what stands in the module's ``repr``."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.name!r}, {self.dim}{padding}"

    # --- forward -------------------------------------------------------------------------------

    def prefetch(self, ids: torch.Tensor) -> None:
        """Ask for the rows of the next batch; the next forward pass with exactly these ids takes them.

        With `zmqps.torch.Optimizer`, between a forward pass and ``step``, they are asked for as soon as the step has
        been pushed, and come with its update. Otherwise they are asked for at once, and what is pushed meanwhile may
        not be in them.

        Parameters
        ----------
        ids : tensor of integers
            Of any shape.
        """
        self._wanted = _flat(ids)
        if not (self._deferred and self._used):
            self.ask()

    def ask(self) -> None:
        """Ask for what `prefetch` was told; the step that it belongs to is on its way."""
        self._used = False
        if self._wanted is not None:
            self._coming = self._wanted, self._table().pull_async(self._wanted)
            self._wanted = None

    def _pull(self, ids: Array) -> Array:
        """Return the rows of some ids ``(n, dim)``, in an array that nobody else has."""
        coming, self._coming = self._coming, None
        if coming is not None and np.array_equal(coming[0], ids):
            found: Array = coming[1].result()
        else:
            found = self._table().pull(ids)
        return found

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows ``(n, dim)`` where the ids are; what `backward` finds for them goes to the table."""
        self.synchronize()
        flat = _flat(ids)
        rows = torch.from_numpy(self._pull(flat)).to(ids.device)
        if self.training and torch.is_grad_enabled():
            self._used = True
            rows.requires_grad_()

            def found(tensor: torch.Tensor) -> None:
                gradient, tensor.grad = tensor.grad, None
                if gradient is not None:
                    self._take(flat, gradient.detach().float().cpu().numpy())

            rows.register_post_accumulate_grad_hook(found)
        return rows

    # --- backward ------------------------------------------------------------------------------

    def _take(self, ids: Array, gradient: Array) -> None:
        """Keep the gradient of some rows, or push it."""
        if self.padding_idx is not None and (real := ids != self.padding_idx).sum() < ids.size:
            ids, gradient = ids[real], gradient[real]
        if self._deferred:
            self._pending.append((ids, gradient))
        else:
            self._sent.append(self._table().push_async(ids, np.ascontiguousarray(gradient)))

    def take(self) -> tuple[Array, Array] | None:
        """Return ids and gradients that ``backward`` has left since the last step, and forget them; None: none."""
        pending, self._pending = self._pending, []
        if not pending:
            return None
        if len(pending) == 1:
            return pending[0]
        ids, gradients = zip(*pending, strict=True)
        return np.concatenate(ids), np.concatenate(gradients)

    def synchronize(self) -> None:
        """Return when what ``backward`` has pushed is applied, or waits for its step; raise what has failed."""
        sent, self._sent = self._sent, []
        for future in sent:
            future.result()


class Embedding(_Rows):
    """As ``torch.nn.Embedding``, with rows of a sparse table by 64-bit id.

    It has no parameters: a forward pass pulls the rows of its ids, ``backward`` pushes their gradients, and servers
    apply the table's optimizer. In the model of a `zmqps.torch.Optimizer` gradients are pushed by ``step``, before
    those of parameters: they belong to the same step, are scaled by a ``GradScaler`` as others, and add up over
    several backward passes. Otherwise ``backward`` pushes them at once. In ``eval`` mode and under ``no_grad`` nothing
    is pushed.

    Parameters
    ----------
    name : str
        Of the table. Modules may share one, if they describe it alike.
    table : TableOptions
        From `zmqps.table`: dim, optimizer, initial values.
    padding_idx : int, optional
        An id whose row is zeros, and is not trained.
    cache : CacheOptions, optional
        From `zmqps.row_cache`: hot rows that this worker keeps, as `zmqps.Worker.table` says.

    Examples
    --------
    >>> items = zmqps.torch.Embedding("items", zmqps.table(64, optimizer=zmqps.optim.adagrad(0.05)))  # doctest: +SKIP
    """

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows.

        Parameters
        ----------
        ids : tensor of integers
            Of any shape and values.

        Returns
        -------
        float32 tensor ``ids.shape + (dim,)``
            On the device of the ids.

        Raises
        ------
        PSError
            As `zmqps.Table.pull`; or a push of an earlier pass has failed.
        """
        rows = self._rows(ids).reshape(*ids.shape, self.dim)
        if self.padding_idx is not None:
            rows = rows.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0.0)
        return rows


class EmbeddingBag(_Rows):
    """As ``torch.nn.EmbeddingBag``, with rows of a sparse table by 64-bit id; for the rest see `Embedding`.

    Parameters
    ----------
    name, table
        As for `Embedding`.
    mode : {"sum", "mean"}
        What becomes of the rows of a bag.
    padding_idx : int, optional
        An id that counts for nothing in a bag, and is not trained.
    include_last_offset : bool
        Whether ``offsets`` end with the number of ids, as those of TorchRec's jagged tensors do.
    cache
        As for `Embedding`.
    """

    def __init__(
        self,
        name: str,
        table: TableOptions,
        *,
        mode: str = "sum",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        cache: CacheOptions | None = None,
    ) -> None:
        super().__init__(name, table, padding_idx=padding_idx, cache=cache)
        self.mode = checks.one_of("mode", mode, MODES)
        self.include_last_offset = checks.flag("include_last_offset", include_last_offset)

    def forward(
        self, ids: Any, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a row for each bag.

        Parameters
        ----------
        ids : tensor of integers ``(n,)`` or ``(bags, k)``, or a jagged tensor
            Of one dimension with ``offsets``, of two without. TorchRec's ``JaggedTensor`` brings ids, offsets and
            weights itself: ``bag(features["items"])`` of a ``KeyedJaggedTensor``.
        offsets : tensor of integers, optional
            Where each bag begins.
        per_sample_weights : floating tensor, optional
            Of the shape of ``ids``: what each row is multiplied with, in mode ``sum``. It has a gradient.

        Returns
        -------
        float32 tensor ``(bags, dim)``
            That of a bag without ids is zeros.

        Raises
        ------
        ConfigurationError
            These do not go together.
        PSError
            As `Embedding.forward`.
        """
        ends = self.include_last_offset
        if not isinstance(ids, torch.Tensor):
            jagged, ends = ids, True
            ids, offsets = jagged.values(), jagged.offsets()
            per_sample_weights = jagged.weights_or_none() if per_sample_weights is None else per_sample_weights
        if per_sample_weights is not None and self.mode != "sum":
            raise ConfigurationError(f"weights of samples go with mode='sum', not {self.mode!r}")
        if per_sample_weights is not None and per_sample_weights.shape != ids.shape:
            raise ConfigurationError(
                f"weights of samples are {tuple(per_sample_weights.shape)}, and the ids {tuple(ids.shape)}"
            )
        if (ids.dim(), offsets is None) not in ((1, False), (2, True)):
            raise ConfigurationError("ids are (n,) with offsets, or (bags, k) without")
        if offsets is not None:
            _check_offsets(offsets, ids.numel(), ends=ends)
        places = torch.arange(ids.numel(), device=ids.device).reshape(ids.shape)
        rows = self._rows(ids)
        padding = None
        if self.padding_idx is not None:
            padding = ids.numel()  # one more row, which counts for nothing
            rows = torch.cat([rows, rows.new_zeros(1, self.dim)])
            places = places.masked_fill(ids == self.padding_idx, padding)
        elif not ids.numel():  # which PyTorch wants to have a row
            rows = torch.cat([rows, rows.new_zeros(1, self.dim)])
        weights = None if per_sample_weights is None else per_sample_weights.to(rows.dtype)
        return torch.nn.functional.embedding_bag(
            places,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=weights,
            include_last_offset=ends and offsets is not None,
            padding_idx=padding,
        )

    def extra_repr(self) -> str:
        """Say what stands in the module's ``repr``."""
        return f"{super().extra_repr()}, mode={self.mode!r}"


def embeddings_of(model: torch.nn.Module) -> list[_Rows]:
    """Return the embeddings in a model."""
    return [module for module in model.modules() if isinstance(module, _Rows)]


def tables(model: torch.nn.Module, worker: Worker, *, deferred: bool = False) -> dict[str, TableOptions]:
    """Return the tables of the embeddings in a model, for `zmqps.Worker.init`, and let these use the worker.

    Parameters
    ----------
    model : torch.nn.Module
        With `Embedding` and `EmbeddingBag`.
    worker : Worker
        Whose job is to have the tables.
    deferred : bool
        For who pushes gradients itself: they are kept until ``take`` of each embedding returns them.

    Raises
    ------
    ConfigurationError
        Two embeddings of one name describe different tables.

    Examples
    --------
    >>> worker.init({}, tables=zmqps.torch.tables(model, worker))  # doctest: +SKIP
    """
    found: dict[str, TableOptions] = {}
    caches: dict[str, CacheOptions] = {}
    for module in embeddings_of(model):
        if found.setdefault(module.name, module.table).options != module.table.options:
            raise ConfigurationError(f"two embeddings describe the table {module.name!r} differently")
        if module.cache is not None and caches.setdefault(module.name, module.cache) != module.cache:
            raise ConfigurationError(f"two embeddings want different caches of the table {module.name!r}")
        module.attach(worker, deferred=deferred)
    return found


class Tables:
    """The embeddings of a model that an optimizer steps.

    Parameters
    ----------
    model
        That has them, perhaps.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = embeddings_of(model)

    def __bool__(self) -> bool:
        return bool(self._modules)

    def push(self, scale: Any) -> list[Future[None]]:
        """Push what `backward` has left, before what ends the step; ``scale``: what gradients were multiplied with."""
        sent = []
        for module in self._modules:
            taken = module.take()
            if taken is not None:
                ids, gradients = taken
                if scale is not None:
                    gradients = gradients / np.float32(float(scale))
                sent.append(module._table().push_async(ids, np.ascontiguousarray(gradients), step=False))
        return sent

    def drop(self) -> None:
        """Forget what `backward` has left."""
        for module in self._modules:
            module.take()

    def ask(self) -> None:
        """Ask for what is to be used next."""
        for module in self._modules:
            module.ask()


def _flat(ids: torch.Tensor) -> Array:
    """Return ids as one array that nobody else writes to."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ConfigurationError(f"ids are integers, not {ids.dtype}")
    found: Array = ids.detach().reshape(-1).to("cpu", torch.int64, copy=True).numpy()
    return found


def _check_offsets(offsets: torch.Tensor, number: int, *, ends: bool) -> None:
    """Raise `ConfigurationError` where bags do not lie one after the other within the ids."""
    if offsets.dim() != 1 or (ends and not offsets.numel()):
        raise ConfigurationError("offsets are of one dimension, and with include_last_offset there is one at least")
    if not offsets.numel():
        return
    first, last, falls = int(offsets[0]), int(offsets[-1]), bool((offsets[1:] < offsets[:-1]).any())
    if first != 0 or falls or last > number or (ends and last != number):
        whole = f"are the number of ids, {number}, in the end" if ends else f"stay within the {number} ids"
        raise ConfigurationError(f"offsets begin with 0, do not fall, and {whole}; these go from {first} to {last}")
