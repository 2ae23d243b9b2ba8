"""Embeddings over the rows of a sparse table on the servers: modules without weights."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zmqps import checks
from zmqps.errors import ConfigurationError
from zmqps.torch.model import outside_graphs
from zmqps.torch.rows import Array, Coming, Gather, Rows, is_rows
from zmqps.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zmqps.client.sparse.cache_options import CacheOptions
    from zmqps.client.sparse.tables import TableOptions

#: How the rows of a bag become one.
MODES = ("sum", "mean")


class Embedding(Rows):
    """As ``torch.nn.Embedding``, with rows of a sparse table by 64-bit id.

    A forward pass pulls the rows of its ids, ``backward`` computes their gradients, and servers apply the table's
    optimizer. In the model of a `zmqps.torch.Optimizer` ``step`` pushes these gradients, before those of parameters:
    they belong to the same step, are scaled by a ``GradScaler``, and add up over several backward passes. Without it
    ``backward`` pushes them at once. In ``eval`` mode and under ``no_grad`` nothing is pushed.

    Parameters
    ----------
    name : str
        The table's name. Modules may share a table, if they describe it alike.
    table : TableOptions
        From `zmqps.table`: dim, optimizer, initial values.
    padding_idx : int, optional
        An id whose row is zeros, and is not trained.
    cache : CacheOptions, optional
        From `zmqps.row_cache`: hot rows that this worker caches, as described in `zmqps.Worker.table`.

    Examples
    --------
    >>> items = zmqps.torch.Embedding("items", zmqps.table(64, optimizer=zmqps.optim.adagrad(0.05)))  # doctest: +SKIP
    """

    @outside_graphs  # type: ignore[untyped-decorator,unused-ignore]
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
        rows, places, padding = self._look_up(ids)
        on_host = rows.device.type == "cpu"
        found = Gather.apply(rows, places) if on_host else torch.nn.functional.embedding(places, rows)
        if padding is not None:
            found = found.masked_fill((places == padding).unsqueeze(-1), 0.0)
        return found


class EmbeddingBag(Rows):
    """As ``torch.nn.EmbeddingBag``, with rows of a sparse table by 64-bit id; for the rest see `Embedding`.

    Parameters
    ----------
    name, table
        As for `Embedding`.
    mode : {"sum", "mean"}
        How the rows of a bag are combined.
    padding_idx : int, optional
        An id that does not count in a bag, and is not trained.
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

    @outside_graphs  # type: ignore[untyped-decorator,unused-ignore]
    def forward(
        self, ids: Any, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a row for each bag.

        Parameters
        ----------
        ids : tensor of integers ``(n,)`` or ``(bags, k)``, or a jagged tensor
            Of one dimension with ``offsets``, of two without. TorchRec's ``JaggedTensor`` includes ids, offsets and
            weights: ``bag(features["items"])`` of a ``KeyedJaggedTensor``.
        offsets : tensor of integers, optional
            Where each bag begins.
        per_sample_weights : floating tensor, optional
            Of the shape of ``ids``: the factor of each row, in mode ``sum``. It has a gradient.

        Returns
        -------
        float32 tensor ``(bags, dim)``
            A bag without ids is zeros.

        Raises
        ------
        ConfigurationError
            These arguments do not go together.
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
        rows, places, padding = self._look_up(ids)
        if not ids.numel():  # PyTorch wants to have a row
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
        """Return the part of ``repr`` in brackets."""
        return f"{super().extra_repr()}, mode={self.mode!r}"


def embeddings_of(model: torch.nn.Module) -> list[Rows]:
    """Return the embeddings in a model."""
    return [module for module in model.modules() if isinstance(module, Rows)]


def tables(model: torch.nn.Module, worker: Worker, *, deferred: bool = False) -> dict[str, TableOptions]:
    """Return the tables of a model's embeddings for `zmqps.Worker.init`, and give these embeddings the worker.

    Parameters
    ----------
    model : torch.nn.Module
        With `Embedding` and `EmbeddingBag`.
    worker : Worker
        Whose job will have the tables.
    deferred : bool
        For a script that pushes gradients itself: they are stored until ``take`` of each embedding returns them.

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
    _leave_out_of_ddp(model)
    return found


def _leave_out_of_ddp(model: torch.nn.Module) -> None:
    """Have `DistributedDataParallel` of a model leave rows alone: each process pushes its own."""
    rows = [name for name, parameter in model.named_parameters() if is_rows(parameter)]
    if rows:
        names = [*getattr(model, "_ddp_params_and_buffers_to_ignore", ()), *rows]
        torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


class Tables:
    """The embeddings of a model that an optimizer steps.

    Parameters
    ----------
    model
        That has them, perhaps.
    owned
        Ids of the parameters in the optimizer's groups.

    Raises
    ------
    ConfigurationError
        Rows that are trained are in no param group, so `GradScaler` and the like would miss their gradients.
    """

    def __init__(self, model: torch.nn.Module, owned: Collection[int]) -> None:
        self._modules = embeddings_of(model)
        self._by_table: dict[str, list[Rows]] = {}
        self._coming: dict[Rows, Coming] = {}  # with the push of the present step
        for module in self._modules:
            self._by_table.setdefault(module.name, []).append(module)
            if module.rows.requires_grad and id(module.rows) not in owned:
                raise ConfigurationError(
                    f"the rows of {module.name!r} are in no param group of the optimizer: make it of "
                    "model.parameters(), so that zero_grad and GradScaler find their gradients; or freeze the layer by "
                    "requires_grad_(False)"
                )

    def __bool__(self) -> bool:
        return bool(self._modules)

    def push(self, scale: Any, *, fetch: bool, timeout: float | None) -> list[Future[Any]]:
        """Push what `backward` has left, before what ends the step.

        Parameters
        ----------
        scale
            What gradients were multiplied with.
        fetch
            Request the next rows in the same round trip: no step has to end first.
        timeout
            As of `zmqps.torch.Optimizer`.
        """
        self._coming = {}
        found = {
            name: [each for module in modules if (each := module.gradients()) is not None]
            for name, modules in self._by_table.items()
        }
        return [self._push(name, some, scale, fetch, timeout) for name, some in found.items() if some]

    def _push(
        self, name: str, found: Sequence[tuple[Array, Array]], scale: Any, fetch: bool, timeout: float | None
    ) -> Future[Any]:
        """Push the gradients that layers have found for a table, which add up."""
        modules = self._by_table[name]
        table = modules[0]._connected()[1]
        ids, gradients = [_joined(arrays) for arrays in zip(*found, strict=True)]
        if scale is not None:
            gradients = gradients / np.float32(float(scale))
        wanted = [(module, following) for module in modules if fetch and (following := module.take_wanted())]
        if not wanted:
            sent: Future[Any] = table.push_async(ids, gradients, step=False, timeout=timeout)
            return sent
        next_ids = [following.once for _, following in wanted]
        ends = np.cumsum([ids.size for ids in next_ids]).tolist()
        sent = table.push_pull_async(ids, gradients, _joined(next_ids), step=False, timeout=timeout)
        for (module, following), start, end in zip(wanted, [0, *ends[:-1]], ends, strict=True):
            self._coming[module] = Coming(following, sent, slice(start, end))
        return sent

    def follow(self) -> None:
        """A step is in flight: request the rest of the next rows."""
        for module in self._modules:
            module.follow(self._coming.pop(module, None))


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _check_offsets(offsets: torch.Tensor, number: int, *, ends: bool) -> None:
    """Raise `ConfigurationError` where bags are not contiguous within the ids."""
    if offsets.dim() != 1 or (ends and not offsets.numel()):
        raise ConfigurationError("offsets must have one dimension, and with include_last_offset at least one element")
    if not offsets.numel():
        return
    first, last, falls = int(offsets[0]), int(offsets[-1]), bool((offsets[1:] < offsets[:-1]).any())
    if first != 0 or falls or last > number or (ends and last != number):
        whole = f"are the number of ids, {number}, in the end" if ends else f"stay within the {number} ids"
        raise ConfigurationError(f"offsets begin with 0, do not fall, and {whole}; these go from {first} to {last}")
