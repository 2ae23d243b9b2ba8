"""Turns the user's ids and rows into transfers of one sparse table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.client.tensors import Destination, are_finite, on_host
from zmqps.codecs import Codec
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import MAX_COUNT, JobSpec, Parameter
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, check_codec, named
from zmqps.core.protocol.terms import SET
from zmqps.core.worker.rows import RowParts, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.errors import ConfigurationError, DtypeError, ShapeError
from zmqps.gpu.handover import Handover
from zmqps.rows.unique import Different, Grouped, summed

#: Accepted dtypes of ids; unsigned 64-bit ids are taken as the signed ones of the same bits.
ID_DTYPES = {name: "int64" for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}
_INT64 = np.dtype(np.int64)


class RowRequests:
    """Makes the transfers of one table.

    Parameters
    ----------
    job, placement
        The job, and its placement.
    number
        Of the table, among the job's.
    handover
        Transfers to and from arrays on GPUs.
    ends_steps
        Whether a push without the option ends the worker's step: there is nothing else to push.
    """

    def __init__(
        self, job: JobSpec, placement: Placement, number: int, handover: Handover, *, ends_steps: bool = False
    ) -> None:
        self.spec: TableSpec = job.tables[number]
        self.parts = RowParts(placement, placement.keyspace.num_dense + number)
        self._job = job
        self._handover = handover
        self._ends_steps = ends_steps

    def pull(self, ids: Any, out: Any, codec: str | Codec | None) -> tuple[PullTransfer, Callable[[Any], Any]]:
        """Return the transfer of `zmqps.Table.pull`, and the function that makes its result."""
        flat, shape = self._ids(ids)
        asked = self.parts.different(flat)
        parts = self.parts.part_of_bucket(asked.size)
        wanted = self.parts.group(asked, parts)
        target, result = self._receive(wanted, shape, out, codec)
        return PullTransfer(cargoes=self.parts.cargoes(parts, None, wanted), target=target), result

    def look(self, ids: Any, out: Any) -> tuple[Grouped, Array, Callable[[], Any]]:
        """Return the distinct ids, the target of all their rows, and the function that makes the caller's array.

        For a caller that has some of them already.
        """
        flat, shape = self._ids(ids)
        asked = self.parts.different(flat)
        wanted = self.parts.group(asked, self.parts.part_of_bucket(asked.size))
        target, result = self._receive(wanted, shape, out, None)
        return wanted, target.out, lambda: result(None)

    def push(self, ids: Any, grads: Any, examples: int, codec: str | Codec | None, step: bool | None) -> PushTransfer:
        """Return the transfer of `zmqps.Table.push`."""
        flat, _, rows = self._rows(ids, grads, "gradients")
        brought = self.parts.different(flat)
        parts = self.parts.part_of_bucket(brought.size)
        push, pushed = self._push(brought, rows, parts, examples, codec, step)
        push.cargoes = self.parts.cargoes(parts, pushed, None, everywhere=self._job.mode == "sync")
        return push

    def push_pull(
        self,
        ids: Any,
        grads: Any,
        next_ids: Any,
        out: Any,
        examples: int,
        codec: str | Codec | None,
        pull_codec: str | Codec | None,
        step: bool | None,
    ) -> tuple[PushTransfer, PullTransfer, Callable[[Any], Any]]:
        """Return the transfers of `zmqps.Table.push_pull`, and the function that makes its result."""
        flat, _, rows = self._rows(ids, grads, "gradients")
        others, shape = self._ids(next_ids)
        brought, asked = self.parts.different(flat), self.parts.different(others)
        parts = self.parts.part_of_bucket(brought.size + asked.size)
        push, pushed = self._push(brought, rows, parts, examples, codec, step)
        wanted = self.parts.group(asked, parts)
        target, result = self._receive(wanted, shape, out, pull_codec)
        if self._job.mode == "async":  # one round trip: each message has gradients, and requests the rows after them
            push.cargoes = self.parts.cargoes(parts, pushed, wanted)
            return push, PullTransfer(cargoes=push.cargoes, target=target), result
        push.cargoes = self.parts.cargoes(parts, pushed, None, everywhere=self._job.mode == "sync")
        return push, PullTransfer(cargoes=self.parts.cargoes(parts, None, wanted), target=target), result

    def load(self, ids: Any, values: Any, step: bool) -> PushTransfer:
        """Return the transfer of `zmqps.Table.load`."""
        checks.flag("step", step)
        flat, _, rows = self._rows(ids, values, "values")
        brought = self.parts.different(flat)
        parts = self.parts.part_of_bucket(brought.size)
        grouped = self.parts.group(brought, parts)
        own = np.empty((grouped.size, self.spec.dim), np.float32)
        own[grouped.inverse] = rows  # of a repeated id the last one
        if self._job.nonfinite == "reject" and not are_finite([own.reshape(-1)]):
            name = self.spec.nonfinite(grouped.ids, own)[0]
            raise ConfigurationError(f"the value of {name} contains NaN or infinity")
        cargoes = self.parts.cargoes(parts, grouped, None)
        source = RowSource(rows=own, codec=RAW, checked=True)
        return PushTransfer(cargoes=cargoes, source=source, whole=step, terms=(SET,))

    @property
    def num_parts(self) -> int:
        """The number of shards with a part of the table."""
        return len(self.parts.slices)

    def scan(self, shard: int, start: int, most: int, since: tuple[int, ...] = ()) -> tuple[PullTransfer, ScanTarget]:
        """Return the transfer that reads rows of one shard in storage order; shards are numbered by their parts."""
        target = ScanTarget(start=start, most=most, dim=self.spec.dim, since=since)
        return PullTransfer(cargoes=self.parts.whole(self.parts.slices[shard]), target=target), target

    def _push(
        self,
        brought: Different,
        rows: Array,
        parts: Any,
        examples: int,
        codec: str | Codec | None,
        step: bool | None,
    ) -> tuple[PushTransfer, Grouped]:
        if step is not None:
            checks.flag("step", step)
        examples = checks.whole("examples", examples, 1, MAX_COUNT)
        text = self._job.push_codec if codec is None else check_codec(codec, pulls=False)
        if text != RAW and (chosen := named(text)) is not None and chosen.error_feedback:
            if codec is not None:
                raise ConfigurationError(
                    f"codec {text!r} leaves values out, to be sent with a later gradient of the same row, which may "
                    "never come; rows travel in raw, bf16, fp16 or int8"
                )
            text = RAW
        grouped = self.parts.group(brought, parts)
        sums = summed(rows, grouped.inverse, grouped.size)
        source = RowSource(rows=sums, codec=text, checked=True)
        if self._job.nonfinite == "reject" and not are_finite([sums.reshape(-1)]):
            source.checked, source.nonfinite = False, self.spec.nonfinite(grouped.ids, sums)
        whole = self._ends_steps if step is None else step
        return PushTransfer(source=source, examples=examples, whole=whole), grouped

    def _receive(
        self, wanted: Grouped, shape: tuple[int, ...], out: Any, codec: str | Codec | None
    ) -> tuple[RowTarget, Callable[[Any], Any]]:
        """Return the target of rows, and the function that makes the caller's array."""
        text = self._job.pull_codec if codec is None else check_codec(codec, pulls=True)
        size, dim = wanted.inverse.size, self.spec.dim
        shape = (*shape, dim)
        if out is None:
            rows = np.empty((size, dim), np.float32)
            return RowTarget(inverse=wanted.inverse, out=rows, codec=text), lambda _: rows.reshape(shape)
        parameter = Parameter(self.spec.name, shape, "float32")
        place = Destination({parameter.name: out}, (parameter,), {parameter.name: 0}, self._handover)
        flat = place.flat[0]
        assert flat is not None
        own = flat if flat.dtype == np.float32 else np.empty(size * dim, np.float32)

        def deliver(_: Any) -> Any:
            if own is not flat:
                np.copyto(flat, own, casting="unsafe")
            return place.deliver()[parameter.name]

        return RowTarget(inverse=wanted.inverse, out=own.reshape(size, dim), codec=text), deliver

    def _ids(self, ids: Any) -> tuple[Array, tuple[int, ...]]:
        """Return ids as a flat contiguous int64 array, and their shape."""
        if type(ids) is np.ndarray and ids.dtype == _INT64:
            array = ids
        else:
            if isinstance(ids, list | tuple | range | int):
                try:
                    ids = np.asarray(ids)
                except (ValueError, OverflowError) as error:
                    name = f"ids for {self.spec.name}"
                    raise DtypeError(name=name, got=str(error), expected="whole numbers of 64 bits") from None
                if not ids.size:
                    ids = ids.astype(np.int64)
            array = on_host(f"ids for {self.spec.name}", ids, self._handover, ID_DTYPES)
            array = array.view(_INT64) if array.dtype == np.uint64 else array.astype(_INT64, copy=False)
        return np.require(array, requirements=["C", "A", "W"]).reshape(-1), array.shape  # as compiled code requires

    def _rows(self, ids: Any, values: Any, what: str) -> tuple[Array, tuple[int, ...], Array]:
        """Return ids, their shape, and a float32 row for each."""
        flat, shape = self._ids(ids)
        name, expected = f"{what} for {self.spec.name}", (*shape, self.spec.dim)
        array = on_host(name, values, self._handover)
        if array.shape != expected:
            raise ShapeError(name=name, got=str(array.shape), expected=str(expected))
        with np.errstate(over="ignore"):  # what becomes infinite is refused, or was allowed
            rows = np.ascontiguousarray(array, np.float32).reshape(flat.size, self.spec.dim)
        return flat, shape, rows
