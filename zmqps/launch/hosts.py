"""Which hosts there are, and what runs on which: hostfiles, ``-H host1:4,host2:4``, and the spreading of roles.

A hostfile is that of Open MPI and DeepSpeed, one host a line, ``#`` begins a comment::

    host-a slots=4                               # up to four workers
    me@host-b servers=1 workers=4 interface=eth1
    [fd00::7] slots=2 port=2222                  # ssh's port
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zmqps.errors import ConfigurationError, printable

#: What this host is called where it is reached without ssh.
LOCAL = "localhost"
#: A file of hosts is small; so is what one host may run.
MAX_HOSTS, MAX_ON_HOST = 4096, 4096
_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,252}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}")
NUMBERS = {"slots": (0, MAX_ON_HOST), "servers": (0, MAX_ON_HOST), "workers": (0, MAX_ON_HOST), "port": (1, 65535)}
NAMES = ("interface", "address", "python")
KEYS = (*NUMBERS, *NAMES, "coordinator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host as the user has written it.

    Attributes
    ----------
    name, user, port
        The host for ssh; ``name`` may be one that only ssh's configuration knows.
    slots
        How many workers it takes at most; None: any number.
    servers, workers
        How many of them exactly; None: as the spreading has it.
    interface, address
        By which its nodes are reached; empty: by the address at which ssh has reached it.
    python
        The Python that runs zmqps there; empty: as everywhere.
    coordinator
        Whether the coordinator should run there.
    """

    name: str
    user: str = ""
    port: int | None = None
    slots: int | None = None
    servers: int | None = None
    workers: int | None = None
    interface: str = ""
    address: str = ""
    python: str = ""
    coordinator: bool = False

    @property
    def destination(self) -> str:
        """The destination for ssh: ``user@name``."""
        return f"{self.user}@{self.name}" if self.user else self.name

    @property
    def is_local(self) -> bool:
        """Whether it is this host, which needs no ssh."""
        return self.name == LOCAL and not self.user and self.port is None

    @property
    def most(self) -> int:
        """How many workers it takes."""
        if self.workers is not None:
            return self.workers
        if self.slots is not None:
            return self.slots
        return 0 if self.servers else MAX_ON_HOST  # one that was named for its servers alone is for them alone


@dataclass(frozen=True, slots=True)
class Place:
    """What runs on a host: the numbers of its servers and of its workers."""

    host: Host
    coordinator: bool
    servers: tuple[int, ...]
    workers: tuple[int, ...]

    @property
    def is_used(self) -> bool:
        """Whether anything runs there."""
        return bool(self.coordinator or self.servers or self.workers)

    @property
    def has_nodes(self) -> bool:
        """Whether the coordinator or a server runs there."""
        return bool(self.coordinator or self.servers)


def read_hostfile(text: str, where: str = "the hostfile") -> list[Host]:
    """Return the hosts of a hostfile.

    Raises
    ------
    ConfigurationError
        A line that cannot be used; says which, and what it may be.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if words:
            hosts.append(_host(words[0], words[1:], f"{where}, line {number}"))
    return _checked(hosts, where)


def read_hosts(text: str) -> list[Host]:
    """Return the hosts of a list such as ``host1:4,me@host2:4,[fd00::7]:2``; the number is that of slots.

    Raises
    ------
    ConfigurationError
        It is not such a list.
    """
    hosts = []
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        match = re.fullmatch(r"((?:[^@]*@)?(?:\[[^\]]*\]|[^:]*))(?::(\w*))?", entry)
        if match is None:
            raise _refused(f"-H {entry!r:.100}", "write HOST or HOST:SLOTS; put an IPv6 address in brackets")
        slots = [] if match[2] is None else [f"slots={match[2]}"]
        hosts.append(_host(match[1], slots, "-H"))
    return _checked(hosts, "-H")


def _host(text: str, words: Sequence[str], where: str) -> Host:
    user, _, name = text.rpartition("@")
    name = name.removeprefix("[").removesuffix("]")
    if not _NAME.fullmatch(name) or (user and not _USER.fullmatch(user)) or text.startswith("@"):
        raise _refused(f"{where}: {text!r:.100} is not a host", "write HOST or USER@HOST")
    facts: dict[str, str | int | bool] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if key in ("max_slots",):  # Open MPI's, which means nothing here
            continue
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(KEYS)}"
            raise _refused(f"{where}: unknown entry {word!r:.100}", hint)
        if key in facts:
            raise _refused(f"{where}: {key} is given twice", "leave one")
        facts[key] = _value(key, value, bool(equals), f"{where}: {word!r:.100}")
    return Host(name=name, user=user, **facts)  # type: ignore[arg-type]


def _value(key: str, value: str, given: bool, where: str) -> str | int | bool:
    if key == "coordinator":
        if value not in ("", "0", "1"):
            raise _refused(where, "write coordinator or coordinator=1")
        return value != "0"
    if key in NUMBERS:
        least, most = NUMBERS[key]
        if not re.fullmatch(r"[0-9]{1,6}", value) or not least <= int(value) <= most:
            raise _refused(where, f"{key} is a whole number from {least} to {most}")
        return int(value)
    if not given or not value or value.startswith("-") or not value.isprintable():
        raise _refused(where, f"write {key}=…")
    return value


def _checked(hosts: Iterable[Host], where: str) -> list[Host]:
    """Return the hosts, each once: one that is named again has the slots of both, as Open MPI has it."""
    found: dict[str, Host] = {}
    for host in hosts:
        other = found.get(host.name)
        if other is None:
            found[host.name] = host
            continue
        slots = (1 if other.slots is None else other.slots) + (1 if host.slots is None else host.slots)
        if replace(host, slots=None) != replace(other, slots=None) or slots > MAX_ON_HOST:
            raise _refused(f"{where}: {host.name} is given twice and differently", "leave one line")
        found[host.name] = replace(host, slots=slots)
    if not found:
        raise _refused(f"{where} names no host", "write one host a line, say: host-a slots=4")
    if len(found) > MAX_HOSTS:
        raise _refused(f"{where} names {len(found)} hosts", f"{MAX_HOSTS} are the most")
    if sum(host.coordinator for host in found.values()) > 1:
        raise _refused(f"{where} has several hosts with coordinator", "there is one coordinator")
    return list(found.values())


# --- placement --------------------------------------------------------------------------------


def spread(hosts: Sequence[Host], servers: int | None, workers: int | None, *, least_workers: int = 1) -> list[Place]:
    """Return what runs on each host, in the order of the hosts.

    Numbers that a host names itself are kept. The other workers go to the hosts with the fewest for their slots, the
    other servers to hosts without workers, or next to workers where all hosts have some; the coordinator to the host
    that asks for it, else to the first. Workers, and servers, of one host have numbers that follow each other.

    Parameters
    ----------
    servers, workers
        How many in all; None: as the hosts say, else one server, and a worker for each slot.
    least_workers
        How many workers there must be.

    Raises
    ------
    ConfigurationError
        The hosts have no room for that many, or name other numbers.
    """
    num_workers = _share(
        hosts, "workers", workers, [host.workers for host in hosts], [host.most for host in hosts],
        otherwise=sum(1 if host.most == MAX_ON_HOST else host.most for host in hosts),
    )  # fmt: skip
    if sum(num_workers) < least_workers:
        raise _refused("the hosts have no room for a worker", "write slots= or workers= in the hostfile")
    for_servers = [host.workers == 0 or not count for host, count in zip(hosts, num_workers, strict=True)]
    apart = any(own and host.servers is None for own, host in zip(for_servers, hosts, strict=True))
    room = [MAX_ON_HOST if own or not apart else 0 for own in for_servers]
    told = [host.servers for host in hosts]
    otherwise = sum(count or 0 for count in told) or int(None in told)
    num_servers = _share(hosts, "servers", servers, told, room, otherwise=otherwise)
    if not sum(num_servers):
        raise _refused("there is no server", "write --servers 1, or servers=1 in the hostfile")
    first = next((number for number, host in enumerate(hosts) if host.coordinator), 0)
    places, server, worker = [], 0, 0
    for number, host in enumerate(hosts):
        own_servers = tuple(range(server, server + num_servers[number]))
        own_workers = tuple(range(worker, worker + num_workers[number]))
        places.append(Place(host, number == first, own_servers, own_workers))
        server, worker = server + len(own_servers), worker + len(own_workers)
    return places


def _share(
    hosts: Sequence[Host], what: str, asked: int | None, told: Sequence[int | None], most: Sequence[int], *,
    otherwise: int,
) -> list[int]:  # fmt: skip
    """Return how many each host gets: its own number, and of the rest one after the other to the emptiest."""
    counts = [count or 0 for count in told]
    rest = (otherwise if asked is None else asked) - sum(counts)
    free = [number for number, count in enumerate(told) if count is None]
    if rest < 0 or (rest and not free):
        raise _refused(f"--{what} {asked} does not fit {what}={sum(counts)} of the hosts", "leave one of them away")
    if rest > sum(most[number] for number in free):
        room = sum(counts) + sum(most[number] for number in free)
        raise _refused(f"{asked} {what} do not fit: the hosts have room for {room}", "raise slots=, or name more hosts")
    slots = {number: hosts[number].slots or 1 if what == "workers" else 1 for number in free}
    for _ in range(rest):
        open_ = [number for number in free if counts[number] < most[number]]
        counts[min(open_, key=lambda number: (counts[number] / slots[number], number))] += 1
    return counts


def _refused(what: str, advice: str) -> ConfigurationError:
    return ConfigurationError(f"{printable(what)}; {advice}")
