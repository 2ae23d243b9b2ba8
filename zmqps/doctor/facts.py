"""What is known of hosts and of the network between them: plain data, as it comes from the other hosts as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from zmqps.errors import ProtocolError, printable

T = TypeVar("T")

#: What a host says of itself is short; more than this is cut off or refused.
MAX_TEXT_CHARS = 500
MAX_ITEMS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface; ``speed_mbit`` is 0 where the system does not know it."""

    addresses: list[str]
    speed_mbit: int
    mtu: int
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """A directory or file of keys: its mode bits, and whether it belongs to this user or to root.

    ``digest`` tells copies of a file apart that holds no secret (SHA-256); it is empty for all others.
    """

    path: str
    folder: bool
    mode: int
    own: bool
    roots: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFacts:
    """What a host has of what `zmqps launch` runs there.

    Attributes
    ----------
    problem
        Why the directory cannot be entered; empty if it can.
    script
        The digest of the script (SHA-256); empty where there is none, or it cannot be read.
    rsync
        Its version; empty where there is none.
    """

    problem: str = ""
    script: str = ""
    rsync: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a host says of itself.

    Attributes
    ----------
    hostname
        As the host calls itself.
    versions
        By name: ``zmqps``, ``protocol``, ``source`` (a hash of zmqps's files), ``Python``, ``libzmq``, ….
    cores, load
        Processors that a process may use, and how many were busy in the last minute.
    memory_nbytes, available_nbytes
        Memory in all, and what can be had without swapping.
    shm_nbytes, shm_free_nbytes
        Size of ``/dev/shm`` and what is free of it; 0 where there is none.
    open_files
        How many descriptors a process may have.
    encrypts
        Whether its libzmq can encrypt (CURVE).
    gpus, gpu_problem
        The GPUs by name, and why they cannot be used; empty if they can.
    interfaces
        By name.
    names
        For each name that the host was asked to resolve, its addresses; empty if it cannot.
    reached_at
        At which of its addresses this host was reached; empty where no ssh was needed.
    keys
        The directory of keys and its files; empty where there is none.
    code
        What there is of what a launch runs; as if there were nothing, where they were not requested.
    """

    hostname: str
    versions: dict[str, str]
    cores: int
    load: float
    memory_nbytes: int
    available_nbytes: int
    shm_nbytes: int
    shm_free_nbytes: int
    open_files: int
    encrypts: bool
    gpus: list[str]
    gpu_problem: str
    interfaces: dict[str, Interface]
    names: dict[str, list[str]]
    reached_at: str = ""
    keys: list[KeyFile] = field(default_factory=list)
    code: CodeFacts = field(default_factory=CodeFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How far a host's clock is ahead of this host's, and by how much that may be wrong, in seconds."""

    ahead_s: float
    error_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port that was bound on a host; 0 means any free one. ``owner``: the process that has it, or empty."""

    host: str
    port: int
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """One host connecting to another.

    Attributes
    ----------
    source, target, port
        The pairs to connect; port 0 means any free one.
    problem
        Empty if it works; else ``refused``, ``silent``, ``no route``, ``unresolved``, ``stranger`` (something else
        answers there) or what the system says.
    latency_s
        Of the quickest round trip.
    near, far
        The addresses of the two ends.
    """

    source: str
    target: str
    port: int
    problem: str = ""
    latency_s: float = 0.0
    near: str = ""
    far: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Bytes a second from one host to another over one connection; ``problem`` says why there is none."""

    source: str
    target: str
    encrypted: bool
    nbytes_per_s: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host as the user named it.

    Attributes
    ----------
    name
        How others call it: a name or an address.
    login
        The destination for ssh, ``user@host``; empty for this host.
    port
        Of its ssh; 0 for the one that ssh itself takes.
    command
        What starts a probe there; empty for this host.
    servers, workers, coordinator
        How many of each it will run, and whether the coordinator.
    interface, address
        By which the others reach it; empty for the address at which ssh has reached it.
    """

    name: str
    login: str = ""
    port: int = 0
    command: Sequence[str] = ()
    servers: int = 0
    workers: int = 0
    coordinator: bool = False
    interface: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model to train: its name, and its bytes as float32."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a launch will run on all hosts.

    Attributes
    ----------
    directory
        In which the workers run.
    script
        Its path on the hosts; empty if none was named.
    here
        What the script is here, and which rsync there is.
    copied
        Whether its folder is copied there first (``--sync-code``).
    """

    directory: str
    script: str = ""
    here: CodeFacts = field(default_factory=CodeFacts)
    copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster as seen from outside.

    Attributes
    ----------
    address
        Its coordinator's endpoint.
    status
        As ``zmqps status --json`` prints it; empty if there was no answer.
    problem
        Why there was none.
    reaches
        From each host to the coordinator and to each server; `Reach.target` is the node's name.
    """

    address: str
    status: Mapping[str, Any]
    problem: str = ""
    reaches: Sequence[Reach] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that was found: what rows are made from.

    Attributes
    ----------
    hosts
        Those that were looked at, in the user's order.
    facts
        What they say, by name; one that is missing has an entry in ``problems``.
    """

    hosts: Sequence[Host]
    facts: Mapping[str, HostFacts] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)  # by which the others reach each host
    ports: Sequence[Port] = ()
    reaches: Sequence[Reach] = ()
    rates: Sequence[Rate] = ()
    unmeasured: int = 0  # pairs whose bandwidth was left out, for there are too many
    model: Model | None = None
    keys: str = ""  # the directory of keys that was asked for
    code: Code | None = None
    cluster: Cluster | None = None


def read(kind: type[T], plain: Any) -> T:
    """Return plain data as what it should be: a dataclass, or a number, text, list or dict of such.

    Raises
    ------
    ProtocolError
        It is something else: another version of zmqps has said it.
    """
    value = _read(kind, plain)
    return value  # type: ignore[no-any-return]


def _read(kind: Any, plain: Any) -> Any:
    if kind is Any:
        return plain
    origin = get_origin(kind)
    if origin is list and isinstance(plain, list) and len(plain) <= MAX_ITEMS:
        return [_read(get_args(kind)[0], item) for item in plain]
    if origin is dict and isinstance(plain, dict) and len(plain) <= MAX_ITEMS:
        return {_read(str, name): _read(get_args(kind)[1], item) for name, item in plain.items()}
    if kind is str and isinstance(plain, str):
        return printable(plain[:MAX_TEXT_CHARS])
    if kind is bool and isinstance(plain, bool):
        return plain
    if kind is int and type(plain) is int:
        return plain
    if kind is float and type(plain) in (int, float):
        return float(plain)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(plain, dict):
        kinds = get_type_hints(kind)
        needed = {item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING}
        if needed <= plain.keys() <= kinds.keys():
            return kind(**{name: _read(kinds[name], item) for name, item in plain.items()})
    raise ProtocolError(f"a host says {plain!r:.80} where {getattr(kind, '__name__', kind)} is due")
