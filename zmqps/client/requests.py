"""Turns the user's arrays into transfers of the job a worker trains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.client.inplace import CopiesOnWrite, GradientBuffers, SharedMemory, Staging
from zmqps.client.naming import check_names
from zmqps.client.small import SmallTensors, are_writeable
from zmqps.client.sparse.rows import RowRequests
from zmqps.client.tensors import Destination, Tables, flatten, look, plain_ones
from zmqps.codecs import Codec
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.norms import scale_to, squares
from zmqps.core.job.spec import MAX_COUNT
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, check_codec
from zmqps.core.protocol.terms import SET_TO_MEAN, terms_of
from zmqps.core.worker.operations import Attached
from zmqps.core.worker.transfer import Cargo, PullTransfer, PushTransfer, Source, Target, in_order, plan
from zmqps.core.worker.views import Views, ViewTarget
from zmqps.errors import ConfigurationError, DtypeError
from zmqps.gpu.encoder import Encoder
from zmqps.gpu.handover import Handover, Remote
from zmqps.optim import trained
from zmqps.trace.doors import DOORS

#: Bytes that one message refers to, where both sides read the other's memory: much where nothing is
#: copied, so there is nothing to overlap; less where values are copied out while later slices are updated.
NOTHING_COPIED_NBYTES, VALUES_COPIED_NBYTES = 32 << 20, 8 << 20
#: Distinct subsets of the parameters whose message plan is cached.
MAX_PLANS = 64
#: More updates than a parameter will ever have, and still small enough for a message.
MAX_VERSION = (1 << 63) - 1


class Params(dict[str, Any]):
    """Parameter values by name, and their version.

    Attributes
    ----------
    version : int
        Synchronous: how many steps they have absorbed. Otherwise the lowest number of updates that any of their
        slices has absorbed.
    """

    def __init__(self, arrays: Mapping[str, Any], version: int = 0) -> None:
        super().__init__(arrays)
        self.version = version

    def __repr__(self) -> str:
        return f"Params(version={self.version}, {super().__repr__()})"


Result = Callable[[Any], Params]


class Requests:
    """Makes transfers for one job.

    Parameters
    ----------
    attached
        The job and its placement.
    handover
        Transfers to and from arrays on GPUs.
    memory
        What servers on this host and this process read of each other.
    buffers
        Those of the previous job, kept if the job is the same.
    """

    def __init__(
        self,
        attached: Attached,
        handover: Handover,
        memory: SharedMemory = SharedMemory(),  # noqa: B008 -- frozen
        buffers: GradientBuffers | None = None,
    ) -> None:
        self.job = attached.job
        self._index = {parameter.name: i for i, parameter in enumerate(self.job.parameters)}
        self.lie(attached.placement)
        self._tables = Tables()
        tables = attached.placement.keyspace.dense
        self._shapes = tuple((table.size, table.dtype) for table in tables)
        self._small = SmallTensors.of(self.job.parameters, tables)
        places = {
            number: (table, start, start + self.job.parameters[number].size)
            for table, members in enumerate(tables)
            for number, start in zip(members.parameters, members.offsets, strict=False)
        }
        #: Of each parameter its name, table, first and one-past-last element there, and shape.
        self._layout = [(p.name, *places[number], p.shape) for number, p in enumerate(self.job.parameters)]
        self._handover = handover
        self._clip_norm = None if self.job.mode == "sync" else self.job.clip_norm  # there servers measure the mean
        #: Without frozen ones: a step does not wait for their gradients.
        self._trained = frozenset(self._index[name] for name in trained(self.job.optimizer, self._index))
        self._set_only = self.job.buffers
        self._trained -= self._set_only
        self._encoder = Encoder(self.job, handover, DOORS.coding())
        self._memory, self._in_place = memory, memory.reads
        self.staging = Staging(self.job, memory)
        self.copies = CopiesOnWrite(self.job, memory)
        self.buffers = buffers if buffers is not None and buffers.parameters == self.job.parameters else None

    def lie(self, placement: Placement) -> None:
        """Plan transfers for other shards from now on; also from the background thread."""
        plans: dict[tuple[int, ...] | frozenset[int] | None, tuple[tuple[Cargo, ...], ...]] = {}
        self._planned = placement, plans  # both at once, for concurrent plans
        self._tables_of_rows: dict[str, RowRequests] = {}

    def table(self, name: str) -> RowRequests:
        """Return the transfers of a sparse table.

        Raises
        ------
        UnknownParameterError
            There is no table of this name.
        """
        if name not in self._tables_of_rows:
            [number] = check_names([name], {table.name: i for i, table in enumerate(self.job.tables)})
            alone = not self._trained and len(self.job.tables) == 1
            requests = RowRequests(self.job, self._planned[0], number, self._handover, ends_steps=alone)
            self._tables_of_rows[name] = requests
        return self._tables_of_rows[name]

    @property
    def _joins(self) -> bool:
        """Whether small gradients may be joined: none is measured separately, and none is where servers read it."""
        return self._clip_norm is None and self.buffers is None

    def gradient_buffers(self) -> GradientBuffers:
        """Return the arrays of `zmqps.Worker.gradient_buffers`."""
        self.staging.end()
        if self.buffers is None:
            self.buffers = GradientBuffers(self.job.parameters, self._memory)
        return self.buffers

    def pull(
        self,
        names: str | Iterable[str] | None,
        out: Mapping[str, Any] | None,
        at_least: int | None,
        exact: int | None,
        codec: str | Codec | None,
        copy: bool = True,
        *,
        each: bool = False,
    ) -> tuple[PullTransfer, Result]:
        """Return the transfer of `zmqps.Worker.pull`, and the function that makes its result."""
        if at_least is not None and exact is not None:
            raise ConfigurationError("a pull takes at_least or exact, not both")
        version = checks.whole("at_least", at_least, 0, MAX_VERSION, optional=True)
        version = version if exact is None else checks.whole("exact", exact, 0, MAX_VERSION)
        if version is not None:
            version = checks.whole("a version", version, 0)
        if out is not None:
            checks.mapping("out", out, "name -> array")
        wanted = _several(names)
        if out is not None and wanted is not None:
            check_names(wanted, self._index)
            missing = [name for name in wanted if name not in out]
            if missing:
                raise ConfigurationError(f"out has no array for {missing[0]!r}, one of the names to pull")
            out = {name: out[name] for name in wanted}
        everything = wanted is None and out is None
        numbers = None if everything else check_names(out or wanted or (), self._index)
        target, result = self._receive(numbers, out, codec, copy, each=each)
        if isinstance(target, ViewTarget) and self._in_place():
            target.in_place = NOTHING_COPIED_NBYTES
        cargoes = self._plan(numbers, ordered=True)
        return PullTransfer(cargoes=cargoes, target=target, version=version or 0, exact=exact is not None), result

    def pull_each(
        self,
        names: str | Iterable[str] | None,
        out: Mapping[str, Any] | None,
        at_least: int | None,
        codec: str | Codec | None,
    ) -> tuple[PullTransfer, dict[int, Any]]:
        """Return the transfer of `zmqps.Worker.pull_each`, and its arrays by parameter number, in the wanted order."""
        parameters, wanted = self.job.parameters, _several(names)
        if out is None:
            numbers = range(len(parameters)) if wanted is None else check_names(wanted, self._index)
            out = {parameters[n].name: np.empty(parameters[n].shape, parameters[n].storage_dtype) for n in numbers}
        pull, _ = self.pull(wanted, out, at_least, None, codec, each=True)
        for name, array in out.items():
            if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
                raise ConfigurationError(
                    f"{name!r}: only contiguous numpy arrays are filled one by one; use pull(out=…)"
                )
        numbers = list(dict.fromkeys(check_names(out if wanted is None else wanted, self._index)))
        pull.target.missing = {number: parameters[number].size for number in numbers}
        return pull, {number: out[parameters[number].name] for number in numbers}

    def stage(self, grads: Mapping[str, Any], codec: str | Codec | None) -> GradientBuffers | None:
        """Copy gradients to where servers read them, if they do and it is worth it; to `give_back` to the `staging`.

        They are checked on the way, and so is all else that might be wrong with them by what takes them.
        """
        staging = self.staging
        if not staging.suits or self._small is not None or self.buffers is not None or not self._in_place():
            return None
        if not isinstance(grads, Mapping) or len(grads) != staging.number:
            return None
        if check_codec(self.job.push_codec if codec is None else codec, pulls=False) != RAW:
            return None
        plain = plain_ones(grads, self.job.parameters, self._index)
        return None if plain is None else staging.take(plain)

    def push(
        self,
        grads: Mapping[str, Any],
        examples: int,
        codec: str | Codec | None,
        *,
        atomic: bool = False,
        step: bool | None = None,
        staged: GradientBuffers | None = None,
    ) -> tuple[PushTransfer, bool]:
        """Return the transfer of `zmqps.Worker.push`, and whether every named parameter has a gradient.

        ``staged``: the buffers that hold the gradients, which are finite.
        """
        if step is not None:
            checks.flag("step", step)
        if atomic is not False:
            checks.flag("atomic", atomic)
        if type(examples) is not int or not 1 <= examples <= MAX_COUNT:  # inline: this runs in each step
            examples = checks.whole("examples", examples, 1, MAX_COUNT)
        small: list[Array] | None = None
        own = self._own(grads) if staged is None else staged
        if own is not None:
            plain: Mapping[int, Array] | None = own.flat
        elif self._small is not None and self._joins and (small := self._small.plain(grads)) is not None:
            plain = dict(enumerate(small))
        else:
            plain = plain_ones(grads, self.job.parameters, self._index)
        arrays: Mapping[int, Array | Remote]
        named: Collection[int]
        if plain is None:
            nothing, some = _without_none(grads)
            arrays = look(some, self.job.parameters, self._index, self._handover)
            named = {*arrays, *check_names(nothing, self._index)}
        else:
            arrays = named = plain
        if self._set_only:
            self._refuse_buffers(named)
        flat: list[Array | None] = [None] * len(self.job.parameters)
        codec = self.job.push_codec if codec is None else check_codec(codec, pulls=False)
        source = Source(arrays=flat, codec=codec, checked=staged is not None)
        cargoes = self._plan(list(arrays))
        lacking = () if len(named) == len(flat) else self._trained.difference(named)
        whole, complete = not lacking if step is None else step, len(named) == len(arrays)
        push = PushTransfer(cargoes=cargoes, source=source, examples=examples, atomic=atomic, whole=whole)
        if not whole and (step is None or self.job.mode != "async"):  # else it is intentional
            push.lacking, push.expected = lacking, len(self._trained)
        coded = plain is None and self._clip_norm is None
        if coded and (port := self._encoder.port_for(source.codec, arrays)) is not None:
            source.nonfinite, source.encoded = self._encoder.encode(port, source.codec, arrays, cargoes, atomic=atomic)
            return push, complete
        if small is not None and self._small is not None:
            source.arrays, source.tables = small, self._small.join(small)
            return push, complete
        for number, array in (flatten(arrays, self._handover) if plain is None else plain).items():
            flat[number] = np.ascontiguousarray(array).reshape(-1)
        if self._clip_norm is not None:
            total = sum(squares(array) for n, array in enumerate(flat) if array is not None and n in self._trained)
            push.terms = terms_of(scale_to(self._clip_norm, total), ())
        if own is None and self.buffers is not None and self.buffers.hold(flat):
            own = self.buffers
        if own is not None:
            self._refer(source, own)
        return push, complete

    def _refer(self, source: Source, own: GradientBuffers) -> None:
        """Push gradients from the tables that hold them, by reference where servers read those."""
        source.tables = own.tables
        source.in_place = NOTHING_COPIED_NBYTES if own.shared and self._in_place() else 0

    def _own(self, grads: Mapping[str, Any]) -> GradientBuffers | None:
        """Return the buffers of `gradient_buffers`, if these are their arrays."""
        buffers = self.buffers
        return buffers if buffers is not None and isinstance(grads, Mapping) and buffers.are(grads) else None

    def put(self, values: Mapping[str, Any], sort: float, examples: int, *, step: bool) -> PushTransfer:
        """Return the transfer of `zmqps.Worker.set` (`SET`) and `zmqps.Worker.average` (`SET_TO_MEAN`)."""
        checks.flag("step", step)
        examples = checks.whole("examples", examples, 1, MAX_COUNT)
        parameters = self.job.parameters
        arrays = look(values, parameters, self._index, self._handover)
        flat: list[Array | None] = [None] * len(parameters)
        for number, array in flatten(arrays, self._handover).items():
            name, dtype = parameters[number].name, parameters[number].storage_dtype
            if not np.can_cast(array.dtype, dtype, "same_kind"):
                raise DtypeError(name=name, got=array.dtype.name, expected=parameters[number].dtype)
            if sort == SET_TO_MEAN and dtype.kind != "f":
                raise DtypeError(
                    name=name, got=dtype.name, expected="a floating dtype; whole numbers have no mean: set"
                )
            if self.job.nonfinite == "reject" and not parameters[number].buffer and not np.isfinite(array).all():
                raise ConfigurationError(f"the value of {name!r} contains NaN or infinity")
            flat[number] = array
        source = Source(arrays=flat, codec=RAW, checked=True)
        cargoes = self._plan(list(arrays))
        atomic = self.job.mode != "sync"
        return PushTransfer(cargoes=cargoes, source=source, examples=examples, atomic=atomic, whole=step, terms=(sort,))

    def push_pull(
        self,
        grads: Mapping[str, Any],
        out: Mapping[str, Any] | None,
        examples: int,
        codec: str | Codec | None,
        pull_codec: str | Codec | None,
        copy: bool = True,
        step: bool | None = None,
        staged: GradientBuffers | None = None,
    ) -> tuple[PushTransfer, PullTransfer, Result]:
        """Return the transfers of `zmqps.Worker.push_pull`, and what makes its result; ``staged`` as in `push`."""
        if out is not None:
            checks.mapping("out", out, "names to arrays")
            checks.mapping("gradients", grads, "names to arrays")
        if out is not None and set(out) != set(grads):
            raise ConfigurationError("push_pull returns what was pushed: out has the same names as grads")
        push, complete = self.push(grads, examples, codec, step=step, staged=staged)
        numbers = [self._index[name] for name in grads]
        target, result = self._receive(numbers, out, pull_codec, copy)
        if push.source.in_place:
            stay = isinstance(target, ViewTarget)
            push.source.in_place = target.in_place = NOTHING_COPIED_NBYTES if stay else VALUES_COPIED_NBYTES
        return push, PullTransfer(cargoes=push.cargoes if complete else self._plan(numbers), target=target), result

    def lend(self, push: PushTransfer, pull: PullTransfer) -> bool:
        """Let servers read the gradients of a push_pull in place until its step is over, if it waits for that.

        Return whether they do; then release the buffers if it fails (`GradientBuffers.part`). If a step needs
        more gradients than there are workers, values may arrive before it is over.
        """
        job = self.job
        waits = push.whole and pull.cargoes is push.cargoes and job.mode == "sync" and job.aggregate is None
        push.source.stays = bool(push.source.in_place) and waits and job.nonfinite == "reject"
        return push.source.stays

    def _refuse_buffers(self, named: Collection[int]) -> None:
        if wrong := sorted(self._set_only.intersection(named)):
            name = self.job.parameters[wrong[0]].name
            raise ConfigurationError(f"{name!r} is a buffer, which has no gradient: worker.set or worker.average it")

    def gradients(self, grads: Mapping[str, Any]) -> tuple[dict[int, Array], frozenset[int]]:
        """Return gradients by parameter number, flat and on this host, and which others a step still lacks."""
        nothing, some = _without_none(grads)
        arrays = look(some, self.job.parameters, self._index, self._handover)
        named = {*arrays, *check_names(nothing, self._index)}
        self._refuse_buffers(named)
        return flatten(arrays, self._handover), self._trained.difference(named)

    def receive(
        self, names: str | Iterable[str] | None, out: Mapping[str, Any] | None, copy: bool
    ) -> tuple[dict[int, Array], Callable[[int], Params]]:
        """Return the flat targets of values by parameter number, and what makes the caller's dict and a version."""
        pull, result = self.pull(names, out, None, None, None)
        if not copy and not checks.flag("copy", copy) and out is not None:
            raise ConfigurationError("copy=False cannot be combined with out=, which copies values")
        target = pull.target
        if target.tables is not None:
            tables = target.tables
            flat = {self._index[name]: tables[t][start:stop] for name, t, start, stop, _ in self._layout}
        else:
            flat = {n: array for n, array in enumerate(target.arrays) if array is not None}

        def deliver(version: int) -> Params:
            params = result(None)
            params.version = version
            for array in () if copy else params.values():
                array.flags.writeable = False
            return params

        return flat, deliver

    def _receive(
        self,
        numbers: list[int] | None,
        out: Mapping[str, Any] | None,
        codec: str | Codec | None,
        copy: bool,
        *,
        each: bool = False,
    ) -> tuple[Target, Result]:
        """Return the targets of values, and what makes the caller's dict; ``each``: filled as values arrive."""
        if copy is not True and not checks.flag("copy", copy) and out is not None:
            raise ConfigurationError("copy=False cannot be combined with out=, which copies values")
        text, parameters = self.job.pull_codec, self.job.parameters
        if codec is not None or text != RAW:  # also that of the job, whose package this client may lack
            text = check_codec(text if codec is None else codec, pulls=True)
        target = Target(codec=text)
        if out is not None:
            if self._small is not None and not each and (small := self._small.plain(out)) and are_writeable(small):
                landing, kept = self._small.landing(), self._small
                target.tables = landing.tables

                def hand_out(_: Any) -> Params:
                    kept.deliver(landing, small)
                    return Params(out, min(target.versions.values(), default=0))

                return target, hand_out
            destination = Destination(out, parameters, self._index, self._handover)
            target.arrays = destination.flat
            return target, lambda _: Params(destination.deliver(), min(target.versions.values(), default=0))
        if numbers is None or len(set(numbers)) == len(parameters):
            tables = target.tables = self._tables.take(self._shapes)
            wanted = [self._layout[number] for number in numbers] if numbers else self._layout
            ordered = {name: tables[t][start:stop].reshape(shape) for name, t, start, stop, shape in wanted}
        else:
            ordered = {parameters[n].name: np.empty(parameters[n].shape, parameters[n].storage_dtype) for n in numbers}
            target.arrays = Destination(ordered, parameters, self._index, self._handover).flat
        if copy and not (self.copies.large and target.tables is not None and self._stay(target.codec)):
            return target, lambda _: Params(ordered, min(target.versions.values(), default=0))
        return self._where_they_arrive(target, ordered, own=copy)

    def _where_they_arrive(self, target: Target, ordered: dict[str, Array], *, own: bool) -> tuple[Target, Result]:
        """As `_receive`, of values that stay where they arrive if they can; ``own``: the caller may write to them."""
        views = Views([array.reshape(-1) for array in ordered.values()], self.copies.take if own else None)

        def look(_: Any) -> Params:
            shaped = zip(ordered.items(), views.arrays(), strict=True)
            arrays = {name: array.reshape(space.shape) for (name, space), array in shaped}
            return Params(arrays, min(stays.versions.values(), default=0))

        stays = ViewTarget(views=views, arrays=target.arrays, tables=target.tables, codec=target.codec)
        return stays, look

    def _stay(self, codec: str) -> bool:
        """Whether all values, which the caller may write to, are handed out where they arrive."""
        return codec == RAW and self._small is None and self.copies.suit

    def _plan(self, numbers: list[int] | None, *, ordered: bool = False) -> tuple[tuple[Cargo, ...], ...]:
        """Return the messages that move some parameters, on request in the order of their names."""
        if self.copies.lent:
            self.copies.call()
        if numbers is not None and ordered:
            key: tuple[int, ...] | frozenset[int] | None = tuple(dict.fromkeys(numbers))
        else:
            key = None if numbers is None or len(set(numbers)) == len(self.job.parameters) else frozenset(numbers)
        placement, plans = self._planned
        if key not in plans:
            if len(plans) >= MAX_PLANS:
                plans.pop(next(iter(plans)))
            some = None if key is None or len(key) == len(self.job.parameters) else frozenset(key)
            cargoes = plan(placement, some)
            plans[key] = in_order(cargoes, key) if isinstance(key, tuple) else cargoes
        return plans[key]


def _without_none(grads: Mapping[str, Any]) -> tuple[list[str], Mapping[str, Any]]:
    """Return the names whose gradient is None, and the others."""
    checks.mapping("gradients", grads, "name -> array")
    nothing = [name for name, grad in grads.items() if grad is None]
    return nothing, {name: grad for name, grad in grads.items() if grad is not None} if nothing else grads


def _several(names: str | Iterable[str] | None) -> list[str] | None:
    if names is None or isinstance(names, str):
        return None if names is None else [names]
    try:
        if not isinstance(names, bytes):
            return list(names)
    except TypeError:  # it cannot be iterated; an array without dimensions only looks like it
        pass
    raise ConfigurationError(f"names must be a name or several names, not {checks.shown(names):.60}")
