"""What is trained: the parameters in their fixed order, the optimizer, the consistency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.core.job.tables import MAX_TABLES, TableSpec
from zmqps.core.protocol.encoding import check_codec_of_job
from zmqps.core.treatments import make_treatment
from zmqps.errors import ConfigurationError, DtypeError, JobError, JobMismatchError, ProtocolError, counted, is_short

#: dtype of a parameter -> dtype in which its values are stored, updated and sent. Half precision loses the small
#: updates that training depends on, so the server keeps its master copy in float32.
STORAGE_DTYPES = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
#: The same for a buffer, which is only stored: integers and booleans keep their dtype.
BUFFER_DTYPES = STORAGE_DTYPES | {
    name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
_STORAGE = {name: np.dtype(storage) for name, storage in BUFFER_DTYPES.items()}
MAX_PARAMETERS = 200_000
#: Of all values together, as stored by servers: the memory of a thousand small hosts.
MAX_NBYTES = 1 << 46
MAX_ELEMENTS = (1 << 48) - 1
#: Of workers, gradients and clocks; a message has no larger ones.
MAX_COUNT = (1 << 63) - 1
#: An error shows this many parts and characters of a differing option.
MAX_SHOWN = 4000
#: Names are shown in errors, logs and the status; real ones have tens of characters.
MAX_NAME_CHARS = 512
NONFINITE_POLICIES = ("reject", "allow")
#: The divisor of an element's sum of gradients in a synchronous step: whose examples.
MEANS = ("pushed", "workers")
STRAGGLER_POLICIES = ("wait", "continue", "fail")
#: Old versions that a job may keep readable; each is one more copy of the model.
MAX_RETAIN = 16


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named tensor; one that is a ``buffer`` is not trained, only set."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """The dtype the servers keep it in."""
        return _STORAGE[self.dtype]

    def describe(self) -> str:
        """Return a text such as ``float32 (10, 4)``."""
        return f"{self.dtype} {self.shape}{', a buffer' if self.buffer else ''}"

    def to_wire(self) -> list[Any]:
        """Return the form in messages and files."""
        return [self.name, list(self.shape), self.dtype, *([1] if self.buffer else [])]


#: The default advice about a job that differs.
ANOTHER_NAME = "give this worker's job another name: connect(..., job=...)"
#: How the workers of a job wait for each other.
MODES = ("sync", "async", "bounded")
#: Other names of the modes, in lower case.
MODE_ALIASES = {"synchronous": "sync", "bsp": "sync", "asynchronous": "async", "asp": "async", "none": "async"}
MODE_ALIASES |= {"ssp": "bounded", **{mode: mode for mode in MODES}}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The description that all workers of a job must share.

    Parameters
    ----------
    parameters
        In the order of the flat key space.
    optimizer
        The wire form of an optimizer (`zmqps.optim.OptimizerSpec.to_wire`).
    mode
        ``sync``, ``async`` or ``bounded``.
    staleness
        Bounded: how many clocks a read may lag, 1 or more. None in the other modes.
    nonfinite
        ``reject`` or ``allow`` gradients with NaN or infinity.
    aggregate
        Synchronous: how many gradients make a step; None: one of every live worker.
    on_straggler
        Synchronous: ``wait``, ``continue`` or ``fail`` when a step's deadline passes.
    mean
        Synchronous: whether an element's mean is over the workers that ``pushed`` it, or over all ``workers`` of the
        step; then those that did not push it count as zeros.
    retain
        Synchronous: how many versions before the current one stay readable.
    push_codec, pull_codec
        The codecs of gradients and values if a call names none.
    treatment
        Not synchronous: the treatment of stale gradients (`Treatment.to_wire`); None: none.
    deterministic
        Synchronous: refuse anything that would make the result depend on the order of arrival.
    workers
        The expected number of workers; None: as many as the cluster expects of a job.
    tables
        Its sparse tables.
    """

    parameters: tuple[Parameter, ...]
    optimizer: Mapping[str, Any]
    mode: str = "sync"
    staleness: int | None = None
    nonfinite: str = "reject"
    aggregate: int | None = None
    on_straggler: str = "wait"
    mean: str = "pushed"
    retain: int = 0
    push_codec: str = "raw"
    pull_codec: str = "raw"
    treatment: Mapping[str, Any] | None = None
    deterministic: bool = False
    workers: int | None = None
    tables: tuple[TableSpec, ...] = ()
    nbytes: int = field(init=False, compare=False, default=0)  # of all values

    def __post_init__(self) -> None:
        if all(parameter.buffer for parameter in self.parameters) and not self.tables:
            raise ConfigurationError("a job needs at least one parameter, or a table")
        if len(self.parameters) > MAX_PARAMETERS:
            raise ConfigurationError(f"a job has at most {MAX_PARAMETERS} parameters, not {len(self.parameters)}")
        seen = set()
        for parameter in self.parameters:
            if len(parameter.name) > MAX_NAME_CHARS:
                name = f"{parameter.name[:40]!r}..."
                raise ConfigurationError(f"the name {name} is longer than {MAX_NAME_CHARS} characters")
            if parameter.name in seen:
                raise ConfigurationError(f"two parameters are named {parameter.name!r}")
            seen.add(parameter.name)
            known = BUFFER_DTYPES if parameter.buffer else STORAGE_DTYPES
            if parameter.dtype not in known:
                raise DtypeError(name=parameter.name, got=parameter.dtype[:40], expected=" or ".join(known))
        self._check_nbytes()
        checks.one_of("nonfinite", self.nonfinite, NONFINITE_POLICIES)
        self._check_mode()
        for label in ("aggregate", "workers"):
            checks.whole(label, getattr(self, label), at_most=MAX_COUNT, optional=True)
        checks.one_of("on_straggler", self.on_straggler, STRAGGLER_POLICIES)
        checks.one_of("mean", self.mean, MEANS)
        if self.mean != "pushed" and self.mode != "sync":
            raise ConfigurationError(
                f'mean={self.mean!r} belongs to mode="sync": in the other modes each push is applied alone'
            )
        checks.whole("aggregate", self.aggregate, 1, optional=True)
        checks.whole("workers", self.workers, 1, optional=True)
        check_codec_of_job(self.push_codec, pulls=False)
        check_codec_of_job(self.pull_codec, pulls=True)
        checks.whole("retain", self.retain, 0, MAX_RETAIN)
        if self.mode != "sync" and (self.aggregate is not None or self.on_straggler != "wait" or self.retain):
            raise ConfigurationError('aggregate, on_straggler and retain belong to synchronous training, mode="sync"')
        if make_treatment(self.treatment) is not None and self.mode == "sync":
            raise ConfigurationError(
                'treatment is for stale gradients, which synchronous training does not have: pass mode="async" or '
                'mode="bounded", or leave treatment out'
            )
        if self.deterministic:
            self._check_deterministic()
        if self.tables:
            self._check_tables()

    def _check_mode(self) -> None:
        """Raise `ConfigurationError` if there is no such mode, or the staleness does not fit it."""
        if not isinstance(self.mode, str) or self.mode not in MODES:
            near = _near_mode(self.mode)
            if near:
                near = f"; pass {near}"
            elif isinstance(self.mode, str) and (near := checks.meant(self.mode, MODES)):
                near = f"; {near}"
            raise ConfigurationError(f"mode must be one of {', '.join(MODES)}, not {checks.shown(self.mode)}{near}")
        if self.mode == "bounded" and self.staleness is None:
            raise ConfigurationError(
                'mode="bounded" needs its bound: pass staleness=n, 1 or more, the steps that a read may lag'
            )
        if self.staleness is None:
            return
        near = _near_mode(self.staleness)
        if self.mode != "bounded":
            raise ConfigurationError(
                f'staleness belongs to mode="bounded", not to mode="{self.mode}": '
                f"{f'pass {near}, or ' if near else ''}leave staleness={checks.shown(self.staleness)} out"
            )
        if type(self.staleness) is not int or not 1 <= self.staleness <= MAX_COUNT:
            raise ConfigurationError(
                f"staleness must be a whole number at least 1, not {checks.shown(self.staleness)}"
                f"{f'; pass {near}' if near else ''}"
            )

    def _check_nbytes(self) -> None:
        """Raise `ConfigurationError` if the values of all parameters are more than a cluster can hold."""
        sizes = [p.size * p.storage_dtype.itemsize for p in self.parameters]
        total = sum(sizes)
        object.__setattr__(self, "nbytes", total)
        if total > MAX_NBYTES:
            number, largest = max(enumerate(sizes), key=lambda pair: pair[1])
            parameter = self.parameters[number]
            raise ConfigurationError(
                f"the job's {counted(len(sizes), 'parameter')} take {total:,} bytes, of at most {MAX_NBYTES:,}; the "
                f"largest, {parameter.name[:80]!r} of shape {list(parameter.shape)}, takes {largest:,}: check its "
                "shape, or keep rows of it in a sparse table (zmqps.table)"
            )

    def _check_tables(self) -> None:
        """Raise `ConfigurationError` if tables conflict with each other, or with the rest."""
        if len(self.tables) > MAX_TABLES:
            raise ConfigurationError(f"a job has at most {MAX_TABLES} tables, not {len(self.tables)}")
        names = {parameter.name for parameter in self.parameters}
        for table in self.tables:
            if table.name in names:
                raise ConfigurationError(f"two parameters or tables are named {table.name!r}")
            names.add(table.name)
        for table in self.tables:  # in files rows are stored next to parameters under this name
            taken = {f"{table.name}.ids", f"{table.name}.values"} & names
            if taken:
                raise ConfigurationError(
                    f"a parameter or table named {taken.pop()!r} goes with no table named {table.name!r}: in a "
                    "checkpoint that name means the table's rows"
                )
        if self.retain:
            raise ConfigurationError("older versions of tables are not kept: leave out retain, or the tables")
        if self.treatment is not None:
            raise ConfigurationError("gradients of tables are applied as they are: leave out treatment, or the tables")

    def _check_deterministic(self) -> None:
        """Raise if the contributors of a step would depend on the order of arrival."""
        if self.mode != "sync":
            raise ConfigurationError('deterministic training is synchronous: pass mode="sync"')
        if self.aggregate is not None:
            raise ConfigurationError(
                f"deterministic training takes one gradient of every worker, not the first {self.aggregate} that come: "
                "leave out aggregate"
            )
        if self.on_straggler == "continue":
            raise ConfigurationError(
                "deterministic training cannot continue without a worker that is late: on_straggler is 'wait' or 'fail'"
            )

    @property
    def stays_because(self) -> str:
        """Why its shards may not be divided again; empty: they may."""
        treatment = make_treatment(self.treatment)
        if treatment is not None and treatment.needs_read:
            return "its treatment needs what each worker has read"  # which only a leader knows
        return ""

    def check_startable(self, num_workers: int | None) -> None:
        """Raise `ConfigurationError` unless the job can be trained by this many workers (None: any number)."""
        if self.deterministic and num_workers is None:
            raise ConfigurationError(
                "deterministic training waits for all workers before its first step, so the job must know how "
                "many: init(..., workers=4), or start the cluster with --workers, or LocalCluster(workers=...)"
            )
        if self.counts_steps and num_workers is None:
            raise ConfigurationError(
                "schedules that count steps must know how many workers make one: init(..., workers=4), or start the "
                "cluster with --workers, or LocalCluster(workers=...); count='pushes' needs no number"
            )

    @property
    def buffers(self) -> frozenset[int]:
        """The numbers of those that are set, not trained."""
        return frozenset(number for number, parameter in enumerate(self.parameters) if parameter.buffer)

    @property
    def clip_norm(self) -> float | None:
        """The limit of the norm of a step's mean; None: it is not measured."""
        limit = self.optimizer.get("clip_norm")
        return float(limit) if isinstance(limit, float | int) and limit > 0 else None

    @property
    def counts_steps(self) -> bool:
        """Whether schedules count several workers' updates as one step."""
        return self.mode != "sync" and self.optimizer.get("count") == "steps"

    @property
    def num_updating(self) -> int:
        """How many separate updates of each parameter a step has: the expected workers; synchronous: one."""
        return 1 if self.mode == "sync" else self.workers or 1

    def to_wire(self) -> dict[str, Any]:
        """Return the map in `Init`, `Job` and `Assign`."""
        return {
            "parameters": [parameter.to_wire() for parameter in self.parameters],
            "optimizer": dict(self.optimizer),
            **{name: getattr(self, name) for name in OPTIONS},
            **({"tables": [table.to_wire() for table in self.tables]} if self.tables else {}),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> JobSpec:
        """Return the job of a received map.

        Raises
        ------
        ProtocolError
            The map is not of that form.
        ConfigurationError, DtypeError
            It is, but the job it describes cannot be trained.
        """
        # optional, such as in older checkpoints
        wire = {"mean": "pushed", "tables": [], **(wire if "mode" in wire else _with_mode(wire))}
        if set(wire) != {"parameters", "optimizer", "tables", *OPTIONS}:
            known = ", ".join(("parameters", "optimizer", *OPTIONS))
            raise ProtocolError(f"a job has {known}, not {sorted(wire)[:8]}")
        entries, optimizer, tables = wire["parameters"], wire["optimizer"], wire["tables"]
        if type(entries) is not list or type(optimizer) is not dict or type(tables) is not list:
            raise ProtocolError("a job's parameters and tables are lists, and its optimizer a map")
        for name, types in OPTIONS.items():
            if type(wire[name]) not in types:
                raise ProtocolError(f"a job's {name} is {' or '.join(t.__name__ for t in types)}")
        options = {name: wire[name] for name in OPTIONS}
        return cls(
            parameters=tuple(_parameter(entry) for entry in entries),
            optimizer=optimizer,
            tables=tuple(TableSpec.from_wire(entry) for entry in tables),
            **options,
        )

    def check_same(self, ours: JobSpec, owner: str, advice: str = ANOTHER_NAME) -> None:
        """Raise `JobMismatchError` unless ``ours``, a later worker's description, is this job.

        The order of the parameters may differ; the job's order counts. ``advice``: what else to do.
        """

        def differ(what: str, mine: str, theirs: str) -> JobMismatchError:
            return JobMismatchError(what=what, ours=mine, theirs=theirs, owner=owner, advice=advice)

        job, worker = ({p.name: p for p in spec.parameters} for spec in (self, ours))
        for name in [*job, *worker]:
            if job.get(name) != worker.get(name):
                both = [of[name].describe() if name in of else "no such parameter" for of in (worker, job)]
                raise differ(f"parameter {name!r}", *both)
        theirs, mine = ({table.name: table.to_wire() for table in spec.tables} for spec in (self, ours))
        for name in [*theirs, *mine]:
            if theirs.get(name) != mine.get(name):
                known = name in theirs and name in mine
                different = [f for f in theirs[name] if theirs[name][f] != mine[name][f]] if known else []
                raise differ(f"table {name!r}", *(_described(of.get(name), different) for of in (mine, theirs)))
        for what in ("optimizer", *OPTIONS):
            if getattr(self, what) != getattr(ours, what):
                raise differ(what, shown(getattr(ours, what)), shown(getattr(self, what)))


#: The fields other than parameters and optimizer, and the allowed values of each on the wire.
OPTIONS: dict[str, tuple[type, ...]] = {
    "mode": (str,),
    "staleness": (int, type(None)),
    "nonfinite": (str,),
    "aggregate": (int, type(None)),
    "on_straggler": (str,),
    "mean": (str,),
    "retain": (int,),
    "push_codec": (str,),
    "pull_codec": (str,),
    "treatment": (dict, type(None)),
    "deterministic": (bool,),
    "workers": (int, type(None)),
}


def _near_mode(value: object) -> str:
    """Return the options that are meant by another name of a mode, or by its number; empty: none."""
    if isinstance(value, str):
        mode = MODE_ALIASES.get(value.lower(), "")
        return mode and (f'mode="{mode}"' if mode != "bounded" else 'mode="bounded", staleness=n')
    if type(value) is int and 0 < value <= MAX_COUNT:
        return f'mode="bounded", staleness={checks.shown(value)}'
    return 'mode="async"' if value is None else 'mode="sync"' if type(value) is int and value == 0 else ""


def _with_mode(wire: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an older map, in which the staleness was the mode: None asynchronous, 0 synchronous, n bounded."""
    staleness = wire.get("staleness", "")
    if staleness is None:
        return {**wire, "mode": "async"}
    if type(staleness) is not int:
        return wire
    return {**wire, "mode": "bounded"} if staleness else {**wire, "mode": "sync", "staleness": None}


def _parameter(entry: Any) -> Parameter:
    if type(entry) is not list or entry[3:] not in ([], [1]) or len(entry) < 3:
        raise ProtocolError("a parameter is [name, shape, dtype], and a buffer [name, shape, dtype, 1]")
    name, shape, dtype, *buffer = entry
    if type(name) is not str or type(dtype) is not str or type(shape) is not list:
        raise ProtocolError("a parameter is [name, shape, dtype]")
    sizes = len(shape) <= 32 and all(type(n) is int and 0 <= n <= MAX_ELEMENTS for n in shape)
    if not sizes or math.prod(shape) > MAX_ELEMENTS:
        raise ProtocolError(f"parameter {name[:80]!r} has no usable shape")
    return Parameter(name, tuple(shape), dtype, bool(buffer))


def _described(table: Mapping[str, Any] | None, fields: list[str]) -> str:
    if table is None:
        return "no such table"
    return ", ".join(f"{name} {table[name]!r}" for name in fields) or f"a table with rows of {table['dim']}"


def shown(value: Any) -> str:
    """Return an option for an error, which may name thousands of groups."""
    plain = dict(value) if isinstance(value, Mapping) else value
    return repr(plain) if is_short(plain, MAX_SHOWN) else "one that is too long to be shown"


def attached(job: JobSpec | None) -> JobSpec:
    """Return the job, or raise `JobError` if there is none yet."""
    if job is None:
        raise JobError("no job is running yet; call worker.init(params, optimizer=...) first")
    return job
