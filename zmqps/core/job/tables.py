"""Sparse tables of a job: rows of float32 by 64-bit id, each created when a gradient first touches it.

An id belongs to one of `NUM_BUCKETS` buckets, by a hash of the id and the table's name; a shard has a range of the
buckets. So rows are spread evenly over the servers, for any ids, and buckets move when servers are added or removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.core.protocol.arrays import Array
from zmqps.errors import ConfigurationError, ProtocolError
from zmqps.rows.hashing import NUM_BUCKETS as NUM_BUCKETS
from zmqps.rows.hashing import seed_of
from zmqps.rows.initial import Initial

MAX_DIM = 4096
MAX_TABLES = 1024
#: What to do with a new row if there is no room for it.
WHEN_FULL = ("refuse", "evict")
#: What a rule's bias corrections count: the updates of each row, or those of the table.
STEP_COUNTS = ("rows", "table")
#: A sketch counts touches in bytes.
MAX_ADMIT = 255
#: Names of tables are shown in errors and in file names.
MAX_TABLE_NAME_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A sparse table, equal on all workers of a job.

    Parameters
    ----------
    name
        Of the table.
    dim
        Elements of a row.
    optimizer
        The wire form of its optimizer.
    initial
        The wire form of the initial values of rows (`zmqps.rows.initial.Initial`).
    capacity_nbytes
        The most bytes of all rows of the table, over all servers; None: the free memory of their hosts.
    when_full
        Whether new rows are then refused, or the rows changed least recently are evicted.
    admit
        The number of touches after which a row is created.
    expire_steps, expire_s
        The updates of the table, or seconds, without a gradient after which a row is removed.
    step_counts
        What bias corrections count.
    lazy_decay
        Whether decoupled weight decay makes up, when a row is touched, for the updates it has missed.
    """

    name: str
    dim: int
    optimizer: Mapping[str, Any]
    initial: Mapping[str, Any]
    capacity_nbytes: int | None = None
    when_full: str = "refuse"
    admit: int = 1
    expire_steps: int | None = None
    expire_s: float | None = None
    step_counts: str = "rows"
    lazy_decay: bool = False
    bucket_seed: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        checks.name("a table's name", self.name, MAX_TABLE_NAME_CHARS)
        plain: dict[str, Any] = {
            "dim": checks.whole("dim", self.dim, 1, MAX_DIM),
            "capacity_nbytes": checks.whole("capacity_nbytes", self.capacity_nbytes, 1, (1 << 63) - 1, optional=True),
            "admit": checks.whole("admit", self.admit, 1, MAX_ADMIT),
            "expire_steps": checks.whole("expire_steps", self.expire_steps, 1, (1 << 31) - 1, optional=True),
        }
        checks.one_of("when_full", self.when_full, WHEN_FULL)
        if self.expire_s is not None:
            plain["expire_s"] = checks.seconds("expire_seconds", self.expire_s)
        for name, value in plain.items():  # numbers of numpy cannot be sent
            object.__setattr__(self, name, value)
        checks.one_of("step_counts", self.step_counts, STEP_COUNTS)
        checks.flag("lazy_decay", self.lazy_decay)
        Initial.from_wire(self.initial)
        if self.when_full == "evict" and self.capacity_nbytes is None:
            raise ConfigurationError(
                f"table {self.name!r}: rows make way for others only where there is a capacity: name capacity_nbytes"
            )
        object.__setattr__(self, "bucket_seed", seed_of("buckets", self.name))

    @property
    def nbytes(self) -> int:
        """Bytes of a row's values."""
        return 4 * self.dim

    def nonfinite(self, ids: Array, rows: Array) -> list[str]:
        """Return, for errors, which of some rows are not finite, such as ``items[17]``."""
        return [f"{self.name}[{number}]" for number in ids[~np.isfinite(rows).all(axis=1)].tolist()]

    def to_wire(self) -> dict[str, Any]:
        """Return the form in messages and files."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_wire(cls, wire: Any) -> TableSpec:
        """Return the table of a received map.

        Raises
        ------
        ProtocolError
            The map is not of that form.
        ConfigurationError
            It is, but there can be no such table.
        """
        if type(wire) is not dict or set(wire) != set(_FIELDS):
            raise ProtocolError(f"a table has {', '.join(_FIELDS)}")
        for name, types in _FIELDS.items():
            if type(wire[name]) not in types:
                raise ProtocolError(f"a table's {name} is {' or '.join(t.__name__ for t in types)}")
        return cls(**wire)


_FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "dim": (int,),
    "optimizer": (dict,),
    "initial": (dict,),
    "capacity_nbytes": (int, type(None)),
    "when_full": (str,),
    "admit": (int,),
    "expire_steps": (int, type(None)),
    "expire_s": (float, int, type(None)),
    "step_counts": (str,),
    "lazy_decay": (bool,),
}
assert set(_FIELDS) == {f.name for f in fields(TableSpec) if f.init}
