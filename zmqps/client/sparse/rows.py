"""Turns the user's ids and rows into transfers of one sparse table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from zmqps import checks
from zmqps.client.tensors import Destination, are_finite, on_host
from zmqps.codecs import Codec, for_values
from zmqps.core.job.keyspace import ROW_DTYPE, Placement
from zmqps.core.job.spec import MAX_COUNT, JobSpec, Parameter
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, check_codec, named
from zmqps.core.protocol.terms import SET
from zmqps.core.worker.operations import Exchange
from zmqps.core.worker.rows import RowParts, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.errors import ConfigurationError, DtypeError, ShapeError
from zmqps.gpu.handover import Handover
from zmqps.rows.unique import Grouped, summed

#: Accepted dtypes of ids; unsigned 64-bit ids are taken as the signed ones of the same bits.
ID_DTYPES = {name: "int64" for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}
_INT64 = np.dtype(np.int64)


class Brought(NamedTuple):
    """What a call of `zmqps.Table` pushes."""

    ids: Any
    grads: Any
    examples: int = 1
    codec: str | Codec | None = None
    step: bool | None = None


class Wanted(NamedTuple):
    """What a call of `zmqps.Table` pulls."""

    ids: Any
    out: Any = None
    codec: str | Codec | None = None


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

    def exchange(
        self, brought: Brought | None, wanted: Wanted | None = None
    ) -> tuple[Exchange, Callable[[Any], Any] | None]:
        """Return the operation of a call, and the function that makes its result.

        Asynchronous: one round trip. Each message has gradients, and requests the rows after them.
        """
        mode, num_rows, going, coming = self._job.mode, 0, None, None
        if brought is not None:
            ids, _, rows = self._rows(brought.ids, brought.grads, "gradients")
            going = self.parts.different(ids)
            num_rows += going.ids.size
        if wanted is not None:
            ids, shape = self._ids(wanted.ids)
            coming = self.parts.different(ids)
            num_rows += coming.ids.size
        parts = self.parts.part_of_bucket(num_rows)
        exchange, pushed, asked, result = Exchange(), None, None, None
        if brought is not None and going is not None:
            pushed = self.parts.group(going, parts)
            exchange.push = self._push(brought, pushed, rows)
        if wanted is not None and coming is not None:
            asked = self.parts.group(coming, parts)
            target, result = self._receive(wanted, asked, shape)
            exchange.pull = PullTransfer(target=target)
        if exchange.push is not None:
            together = asked if mode == "async" else None
            exchange.push.cargoes = self.parts.cargoes(parts, pushed, together, everywhere=mode == "sync")
        if exchange.pull is not None:
            pushing = exchange.push if mode == "async" else None
            exchange.pull.cargoes = self.parts.cargoes(parts, None, asked) if pushing is None else pushing.cargoes
        return exchange, result

    def look(self, wanted: Wanted) -> tuple[Grouped, Array, Callable[[], Any]]:
        """Return the distinct ids, the target of all their rows, and the function that makes the caller's array.

        For a caller that has some of them already.
        """
        flat, shape = self._ids(wanted.ids)
        found = self.parts.different(flat)
        asked = self.parts.group(found, self.parts.part_of_bucket(found.size))
        target, result = self._receive(wanted, asked, shape)
        return asked, target.out, lambda: result(None)

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

    def _push(self, brought: Brought, pushed: Grouped, rows: Array) -> PushTransfer:
        if brought.step is not None:
            checks.flag("step", brought.step)
        examples = checks.whole("examples", brought.examples, 1, MAX_COUNT)
        text = self._job.push_codec if brought.codec is None else check_codec(brought.codec, pulls=False)
        if text != RAW and (chosen := named(text)) is not None and chosen.error_feedback:
            if brought.codec is not None:
                raise ConfigurationError(
                    f"codec {text!r} leaves values out, to be sent with a later gradient of the same row, which may "
                    f"never come; rows travel in {for_values()}"
                )
            text = RAW
        sums, finite = summed(rows, pushed.inverse, pushed.ids.size)
        source = RowSource(rows=sums, codec=text, checked=True)
        if not finite and self._job.nonfinite == "reject":
            source.checked, source.nonfinite = False, self.spec.nonfinite(pushed.ids, sums)
        whole = self._ends_steps if brought.step is None else brought.step
        return PushTransfer(source=source, examples=examples, whole=whole)

    def _receive(
        self, wanted: Wanted, asked: Grouped, shape: tuple[int, ...]
    ) -> tuple[RowTarget, Callable[[Any], Any]]:
        """Return the target of rows, and the function that makes the caller's array."""
        text = self._job.pull_codec
        if wanted.codec is not None or text != RAW:  # also that of the job, whose package this client may lack
            text = check_codec(text if wanted.codec is None else wanted.codec, pulls=True)
        size, dim, out = asked.inverse.size, self.spec.dim, wanted.out
        shape = (*shape, dim)
        if out is None:
            out = np.empty(shape, np.float32)
        elif not (type(out) is np.ndarray and out.dtype == ROW_DTYPE and out.shape == shape and out.flags.carray):
            return self._receive_elsewhere(asked, shape, out, text)
        return RowTarget(inverse=asked.inverse, out=out.reshape(size, dim), codec=text), lambda _: out

    def _receive_elsewhere(
        self, asked: Grouped, shape: tuple[int, ...], out: Any, codec: str
    ) -> tuple[RowTarget, Callable[[Any], Any]]:
        """Return as `_receive` does, where the caller's array cannot be written to as rows arrive."""
        parameter = Parameter(self.spec.name, shape, "float32")
        place = Destination({parameter.name: out}, (parameter,), {parameter.name: 0}, self._handover)
        flat = place.flat[0]
        assert flat is not None
        own = flat if flat.dtype == np.float32 else np.empty(flat.size, np.float32)

        def deliver(_: Any) -> Any:
            if own is not flat:
                np.copyto(flat, own, casting="unsafe")
            return place.deliver()[parameter.name]

        return RowTarget(inverse=asked.inverse, out=own.reshape(-1, self.spec.dim), codec=codec), deliver

    def _ids(self, ids: Any) -> tuple[Array, tuple[int, ...]]:
        return flat_ids(f"ids for {self.spec.name}", ids, self._handover)

    def _rows(self, ids: Any, values: Any, what: str) -> tuple[Array, tuple[int, ...], Array]:
        """Return ids, their shape, and a float32 row for each."""
        flat, shape = self._ids(ids)
        name, expected = f"{what} for {self.spec.name}", (*shape, self.spec.dim)
        plain = type(values) is np.ndarray and values.dtype == ROW_DTYPE
        array = values if plain else on_host(name, values, self._handover)
        if array.shape != expected:
            raise ShapeError(name=name, got=str(array.shape), expected=str(expected))
        if not (plain and array.flags.c_contiguous):
            with np.errstate(over="ignore"):  # what becomes infinite is refused, or was allowed
                array = np.ascontiguousarray(array, np.float32)
        return flat, shape, array.reshape(flat.size, self.spec.dim)


def flat_ids(name: str, ids: Any, handover: Handover) -> tuple[Array, tuple[int, ...]]:
    """Return ids as a flat contiguous int64 array, and their shape.

    Raises
    ------
    DtypeError
        They are not whole numbers of 64 bits.
    """
    if type(ids) is np.ndarray and ids.dtype == _INT64:
        array = ids
    else:
        if isinstance(ids, list | tuple | range | int):
            try:
                ids = np.asarray(ids)
            except (ValueError, OverflowError) as error:
                raise DtypeError(name=name, got=str(error), expected="whole numbers of 64 bits") from None
            if not ids.size:
                ids = ids.astype(np.int64)
        array = on_host(name, ids, handover, ID_DTYPES)
        array = array.view(_INT64) if array.dtype == np.uint64 else array.astype(_INT64, copy=False)
    flat = array if array.flags.carray else np.require(array, requirements=["C", "A", "W"])  # for compiled code
    return flat.reshape(-1), array.shape
