"""What a checkpoint is of, and which files belong to it: `manifest.json`, which is written last."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import metadata
from types import NoneType
from typing import Any, NamedTuple

from zmqps.checkpoint.checksums import of_bytes
from zmqps.checkpoint.storage import Storage, naming_the_disk
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import MAX_COUNT, JobSpec
from zmqps.errors import (
    CheckpointCorruptError,
    CheckpointForeignError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    ConfigurationError,
    PSError,
    printable,
)

NAME = "manifest.json"
#: Raised when a reader of before would misread what is written.
FORMAT = 2
#: In this format also parameters could be in another checkpoint, which this one builds upon.
FORMAT_OF_DENSE_CHANGES = 1
#: 200,000 parameters with long names; more is not read into memory.
MAX_NBYTES = 512 << 20
MAX_HOST_CHARS = 255
CONSISTENT, PER_SLICE = "consistent", "per slice"
#: The last second that can be written as a date.
MAX_SECONDS = 253_402_300_799

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
#: Field -> what it may be, besides the checksum.
_FIELDS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "zmqps": (str,),
    "created_at": (int, float),
    "job_name": (str,),
    "job": (dict,),
    "placement": (dict,),
    "version": (int,),
    "kind": (str,),
    "slots": (list,),
    "shards": (list,),
    "data": (list,),
    "state": (dict,),
    "run": (dict,),
    "base": (list, NoneType),
    "owner": (dict, NoneType),
}


class FileFact(NamedTuple):
    """What the manifest says of a file; it travels as a list."""

    name: str
    nbytes: int
    xxh3_128: str

    @classmethod
    def from_wire(cls, entry: object) -> FileFact:
        """Return the fact of a received list; raise `ValueError` if it is invalid."""
        match entry:
            case [str(name), int(nbytes), str(digest)] if (
                _FILE_NAME.fullmatch(name) and type(nbytes) is int and nbytes >= 0 and _DIGEST.fullmatch(digest)
            ):
                return cls(name, nbytes, digest)
        raise ValueError("a file is [name, bytes, checksum]")


def installed_version() -> str:
    """Return the version of the package that is installed here."""
    try:
        return metadata.version("zmqps")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The cluster that a checkpoint is of.

    Parameters
    ----------
    cluster
        Its identity, in hexadecimal digits; a coordinator that comes back from its journal has the same.
    run
        The cluster that the training began in: what is restored continues as the run of its checkpoint.
    host, pid, since
        Of its coordinator; since when that runs, in seconds since 1970.
    """

    cluster: str
    run: str
    host: str
    pid: int
    since: float

    def to_plain(self) -> dict[str, Any]:
        """Return it as the manifest has it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: object) -> Owner:
        """Return the owner of a manifest; raise `ValueError` if it is invalid."""
        match plain:
            case {"cluster": str(cluster), "run": str(run), "host": str(host), "pid": int(pid), "since": float(since)}:
                ids = _DIGEST.fullmatch(cluster) and _DIGEST.fullmatch(run) and len(host) <= MAX_HOST_CHARS
                if ids and type(pid) is int and 0 <= pid < 1 << 63 and math.isfinite(since):
                    return cls(cluster=cluster, run=run, host=host, pid=pid, since=since)
        raise ValueError("it has no usable owner")

    def __str__(self) -> str:
        with suppress(ValueError, OverflowError, OSError):  # a time that no calendar has
            since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
            return f"the cluster {self.cluster[:8]} (host {printable(self.host)}, pid {self.pid}, since {since})"
        return f"the cluster {self.cluster[:8]} (host {printable(self.host)}, pid {self.pid})"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint is of, and which files belong to it.

    Parameters
    ----------
    job_name, job, placement
        Of the trained model, and how the shards divided it.
    version
        Updates that the values have absorbed; of the slices, the fewest.
    kind
        ``consistent``: all slices are of this version, or were cut between pushes; ``per slice``: each is whole, with
        its own version.
    slots
        Names of the optimizer's slots, in the order in which they were written.
    shards
        The files of each shard, the one with its state last.
    created_at
        Seconds since 1970.
    data
        How far the job's data sets are; plain data.
    state
        What the user saves with it; plain data.
    run
        The coordinator's other state of the job; plain data.
    zmqps
        The version that wrote it.
    base
        Name and checksum of the manifest of the checkpoint in the same directory that this one builds upon; None: it
        has all rows.
    owner
        The cluster that made it; None: none did.
    """

    job_name: str
    job: JobSpec
    placement: Placement
    version: int
    slots: tuple[str, ...]
    shards: tuple[tuple[FileFact, ...], ...]
    created_at: float
    kind: str = CONSISTENT
    data: list[Any] = field(default_factory=list)
    state: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    zmqps: str = field(default_factory=installed_version)
    base: tuple[str, str] | None = None
    owner: Owner | None = None

    @cached_property
    def files(self) -> tuple[FileFact, ...]:
        """All files but the manifest."""
        return tuple(fact for shard in self.shards for fact in shard)

    @property
    def nbytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(fact.nbytes for fact in self.files)

    @cached_property
    def digest(self) -> str:
        """The checksum of the file, by which what builds upon this checkpoint names it."""
        return of_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the file.

        Raises
        ------
        ConfigurationError
            ``data``, ``state`` or ``run`` is not plain data.
        """
        body = {
            "format": FORMAT,
            "zmqps": self.zmqps,
            "created_at": self.created_at,
            "job_name": self.job_name,
            "job": self.job.to_wire(),
            "placement": self.placement.to_wire(),
            "version": self.version,
            "kind": self.kind,
            "slots": list(self.slots),
            "shards": [[list(fact) for fact in shard] for shard in self.shards],
            "data": plain("data", self.data),
            "state": plain("state", dict(self.state)),
            "run": plain("run", dict(self.run)),
            "base": None if self.base is None else list(self.base),
            "owner": None if self.owner is None else self.owner.to_plain(),
        }
        return _sealed(body)

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Manifest:
        """Return what a file says.

        Raises
        ------
        CheckpointForeignError, CheckpointFormatError, CheckpointCorruptError
            It is not a manifest of zmqps, one of a later version, or it was damaged.
        """
        body = _parsed(path, data)
        digest = body.pop("xxh3_128", None)
        try:
            if not isinstance(digest, str) or _sealed(body) != data:
                raise ValueError("its checksum is not what was written")
            for name, types in _FIELDS.items():
                if type(body.get(name)) not in types:
                    raise ValueError(f"it has no usable {name}")
            if body["kind"] not in (CONSISTENT, PER_SLICE):
                raise ValueError("it has no usable kind")
            job = JobSpec.from_wire(body["job"])
            placement = Placement.from_wire(KeySpace.of(job), body["placement"])
            shards = tuple(tuple(map(FileFact.from_wire, shard)) for shard in body["shards"])
            _check_sizes(body, job, shards)
            if len(shards) != placement.num_shards or not all(shards):
                raise ValueError(f"it has {len(shards)} shards and should have {placement.num_shards}")
            if body["base"] is not None:
                [base, _] = map(_text, body["base"])
                if not _FILE_NAME.fullmatch(base):
                    raise ValueError("it has no usable base")
            if not all(isinstance(slot, str) for slot in body["slots"]):
                raise ValueError("it has no usable slots")
            owner = None if body["owner"] is None else Owner.from_plain(body["owner"])
        except (ValueError, TypeError, ArithmeticError, RecursionError, PSError) as error:
            raise corrupt(path, f"the manifest cannot be used: {error}") from error
        return cls(
            job_name=body["job_name"],
            job=job,
            placement=placement,
            version=body["version"],
            kind=body["kind"],
            slots=tuple(body["slots"]),
            shards=shards,
            created_at=float(body["created_at"]),
            data=body["data"],
            state=body["state"],
            run=body["run"],
            base=None if body["base"] is None else (body["base"][0], body["base"][1]),
            owner=owner,
            zmqps=body["zmqps"],
        )


def _check_sizes(body: Mapping[str, Any], job: JobSpec, shards: tuple[tuple[FileFact, ...], ...]) -> None:
    """Raise `ValueError` where numbers cannot be true, before anything is as large or as long as they say."""
    for name, most in {"created_at": MAX_SECONDS, "version": MAX_COUNT}.items():
        if not 0 <= body[name] <= most:
            raise ValueError(f"it has no usable {name}")
    values = sum(parameter.size * parameter.storage_dtype.itemsize for parameter in job.parameters)
    files = sum(fact.nbytes for shard in shards for fact in shard)
    if values > files:
        raise ValueError(f"its parameters have {values:,} bytes, and its files {files:,}")


def corrupt(path: str, what: str) -> CheckpointCorruptError:
    """Return the error for a checkpoint that is not what was written."""
    return CheckpointCorruptError(path=path, what=what, good="", advice="use another checkpoint")


@contextmanager
def reading(storage: Storage, file: str) -> Iterator[None]:
    """Turn an `OSError` into an error that says what to do.

    Of a checkpoint that is removed the manifest goes first; so a missing file of a present manifest was lost.
    """
    path = file.rpartition("/")[0]
    with naming_the_disk(file, "read"):
        try:
            yield
        except FileNotFoundError as error:
            if NAME in storage.names(path):
                raise corrupt(file, "the file is missing") from error
            raise removed(path) from error


def removed(path: str) -> CheckpointNotFoundError:
    """Return the error for a checkpoint that was there a moment ago."""
    return CheckpointNotFoundError(
        path=path,
        what="it was removed while it was read: the cluster that makes them keeps the latest only",
        good="",
        advice="read the latest one, or have the cluster keep more (--checkpoint-keep)",
    )


def plain(label: str, value: Any) -> Any:
    """Return a value as JSON gives it back, tuples as lists; raise `ConfigurationError` if it is not plain data."""
    try:
        _check_keys(value)
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{label} must be plain data: maps with texts as keys, lists, texts, finite numbers, True, False and None "
            f"({error})"
        ) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not text")
    return value


def _check_keys(value: Any) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a text")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)


def _sealed(body: Mapping[str, Any]) -> bytes:
    """Return the file with these fields, and last its checksum: the XXH3-128 of the file without it."""
    text = json.dumps(body, indent=1, allow_nan=False)
    return json.dumps({**body, "xxh3_128": of_bytes(text.encode())}, indent=1).encode()


def _parsed(path: str, data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise corrupt(path, "the manifest is not JSON") from error
    if not isinstance(body, dict) or not {"format", "zmqps"} <= set(body):
        raise CheckpointForeignError(
            path=path, what="the manifest is not of zmqps", good="", advice="name a checkpoint that zmqps has written"
        )
    if type(body["format"]) is int and body["format"] > FORMAT:
        raise CheckpointFormatError(
            path=path,
            what=f"it is of format {body['format']}, written by zmqps {body['zmqps']!s:.40}, and this zmqps "
            f"{installed_version()} reads up to format {FORMAT}",
            good="",
            advice="install a newer zmqps, or use another checkpoint",
        )
    if body["format"] == FORMAT_OF_DENSE_CHANGES and body.get("base") is not None:
        raise CheckpointFormatError(
            path=path,
            what=f"it is of format {body['format']}, written by zmqps {body['zmqps']!s:.40}, and holds only the "
            "parameters that have changed since the checkpoint it builds upon, which this zmqps no longer reads",
            good="",
            advice="rewrite it as a whole with the zmqps that wrote it (zmqps checkpoint compact), or use a whole "
            "checkpoint",
        )
    return body
