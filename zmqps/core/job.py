"""What is trained: the parameters in their fixed order, the optimizer, the consistency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zmqps.errors import ConfigurationError, DtypeError, JobError, JobMismatchError, ProtocolError

#: dtype of a parameter -> dtype its values are kept, updated and sent in. Half precision loses the
#: small updates training lives on, so the server keeps its master copy in float32.
STORAGE_DTYPES = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
MAX_PARAMETERS = 200_000
#: Names stand in errors, logs and the status; real ones have tens of characters.
MAX_NAME_CHARS = 512
NONFINITE_POLICIES = ("reject", "allow")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def storage_dtype(self) -> str:
        """The dtype the servers keep it in."""
        return STORAGE_DTYPES[self.dtype]

    def describe(self) -> str:
        """Return, say, ``float32 (10, 4)``."""
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything that must be equal on all workers of a job.

    Parameters
    ----------
    parameters
        In the order of the flat key space.
    optimizer
        The wire form of an optimizer (`zmqps.optim.OptimizerSpec.to_wire`).
    staleness
        How many clocks a read may lag: None asynchronous.
    nonfinite
        ``reject`` or ``allow`` gradients with NaN or infinity.
    """

    parameters: tuple[Parameter, ...]
    optimizer: Mapping[str, Any]
    staleness: int | None = None
    nonfinite: str = "reject"

    def __post_init__(self) -> None:
        if not self.parameters:
            raise ConfigurationError("a job needs at least one parameter")
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
            if parameter.dtype not in STORAGE_DTYPES:
                raise DtypeError(name=parameter.name, got=parameter.dtype[:40], expected=" or ".join(STORAGE_DTYPES))
        if self.nonfinite not in NONFINITE_POLICIES:
            raise ConfigurationError(f"nonfinite is one of {NONFINITE_POLICIES}, not {self.nonfinite[:40]!r}")
        if self.staleness is not None:
            raise ConfigurationError(
                f"staleness={self.staleness!r}: this version trains asynchronously only, pass staleness=None"
            )

    @property
    def mode(self) -> str:
        """The mode in force, for logs and the status."""
        return "async"

    def to_wire(self) -> dict[str, Any]:
        """Return the map that travels in `Init`, `Job` and `Assign`."""
        return {
            "parameters": [[p.name, list(p.shape), p.dtype] for p in self.parameters],
            "optimizer": dict(self.optimizer),
            "staleness": self.staleness,
            "nonfinite": self.nonfinite,
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
        if set(wire) != {"parameters", "optimizer", "staleness", "nonfinite"}:
            raise ProtocolError(f"a job has parameters, optimizer, staleness and nonfinite, not {sorted(wire)[:8]}")
        entries = wire["parameters"]
        optimizer, staleness, nonfinite = wire["optimizer"], wire["staleness"], wire["nonfinite"]
        if type(entries) is not list or type(optimizer) is not dict or type(nonfinite) is not str:
            raise ProtocolError("a job's parameters are a list, its optimizer a map, nonfinite a string")
        if staleness is not None and type(staleness) is not int:
            raise ProtocolError("a job's staleness is an integer or nil")
        return cls(tuple(_parameter(entry) for entry in entries), optimizer, staleness, nonfinite)

    def check_same(self, ours: JobSpec, owner: str) -> None:
        """Raise `JobMismatchError` unless ``ours``, a later worker's word, is this job.

        The order of the parameters need not be the same; theirs, the job's, counts.
        """
        job = {p.name: p for p in self.parameters}
        worker = {p.name: p for p in ours.parameters}
        for name in [*job, *worker]:
            if job.get(name) != worker.get(name):
                raise JobMismatchError(
                    what=f"parameter {name!r}",
                    ours=worker[name].describe() if name in worker else "no such parameter",
                    theirs=job[name].describe() if name in job else "no such parameter",
                    owner=owner,
                )
        for what in ("optimizer", "staleness", "nonfinite"):
            if getattr(self, what) != getattr(ours, what):
                raise JobMismatchError(
                    what=what, ours=repr(getattr(ours, what)), theirs=repr(getattr(self, what)), owner=owner
                )


def _parameter(entry: Any) -> Parameter:
    if type(entry) is not list or len(entry) != 3:
        raise ProtocolError("a parameter is [name, shape, dtype]")
    name, shape, dtype = entry
    if type(name) is not str or type(dtype) is not str or type(shape) is not list:
        raise ProtocolError("a parameter is [name, shape, dtype]")
    if any(type(n) is not int or n < 0 for n in shape) or len(shape) > 32 or math.prod(shape) >= 1 << 48:
        raise ProtocolError(f"parameter {name[:80]!r} has no usable shape")
    return Parameter(name, tuple(shape), dtype)


def attached(job: JobSpec | None) -> JobSpec:
    """Return the job, or raise `JobError` where there is none yet."""
    if job is None:
        raise JobError("no job is running yet; call worker.init(params, optimizer=...) first")
    return job
