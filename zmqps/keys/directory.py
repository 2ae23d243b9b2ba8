"""A directory of keys: made, handed out as tokens, rotated and revoked.

Nodes read the list of keys again whenever it changes, so all of this works while they run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zmqps import checks
from zmqps.core.protocol.endpoints import check_peer
from zmqps.core.protocol.security.roles import KEY_ROLES
from zmqps.errors import ConfigurationError
from zmqps.folder import Folder
from zmqps.keys.curve import new_pair
from zmqps.keys.keyring import (
    AUTHORIZED,
    CLUSTER_PUBLIC,
    CLUSTER_SECRET,
    MAX_ENTRIES,
    Entry,
    Keys,
    Pair,
    check_name,
    moment,
    read_entries,
)

#: For so long the old keys continue to open after they were rotated.
GRACE_S = 3600.0
#: Keys that open nothing any more are kept in the list for so long, so that a log can say whose they were.
KEPT_S = 30 * 86400.0
_HEAD = (
    "# The keys that the nodes of this cluster accept. Written by `zmqps keys`; nodes read it again when it changes.\n"
)


def create(directory: str | os.PathLike[str]) -> Keys:
    """Make the keys of a new cluster: its nodes' pair, and one for each role.

    Parameters
    ----------
    directory
        Where they go; made if it is not there. Its files can be read by this user only.

    Raises
    ------
    ConfigurationError
        There are keys already.
    UnsafeFileError
        Others may change what is in the directory.
    """
    with _opened(directory, make=True) as folder:
        if CLUSTER_PUBLIC in os.listdir(folder.fd):
            raise ConfigurationError(
                f"there are keys in {folder.path} already; zmqps keys rotate makes new ones in their place"
            )
        now, pairs = time.time(), {role: new_pair() for role in KEY_ROLES}
        cluster = new_pair()
        for role, pair in pairs.items():
            _replace(folder, f"{role}.key", f"{pair.public}\n{pair.secret}\n")
        _write_entries(folder, [Entry(name=r, role=r, public=p.public, made=now) for r, p in pairs.items()])
        _replace(folder, CLUSTER_SECRET, cluster.secret + "\n")
        _replace(folder, CLUSTER_PUBLIC, cluster.public + "\n")  # last: the other files are complete
        return Keys.load(folder.path)


def token(
    directory: str | os.PathLike[str],
    role: str = "worker",
    address: str = "",
    *,
    name: str | None = None,
    lasts: float | None = None,
) -> str:
    """Make a key, and return all that a process needs to join as one string (a token).

    Parameters
    ----------
    directory
        The keys of the cluster's nodes.
    role : {"worker", "observer", "node"}
        What it allows.
    address
        The coordinator's endpoint, to put into the token; without one, `connect` needs it.
    name
        The name that appears in logs and revokes it; by default the role and a number.
    lasts
        Seconds until it opens nothing any more; None: until it is revoked.

    Raises
    ------
    ConfigurationError
        There is a key of that name, or the directory does not hold the keys of a node.
    """
    checks.one_of("role", role, KEY_ROLES)
    if address:
        check_peer(address)
    if lasts is not None:
        lasts = checks.number("lasts", lasts, above=0)
    pair = new_pair()
    with _opened(directory) as folder:
        keys = Keys.load(folder.path)
        found = _read_entries(folder, keys)
        taken, now = {entry.name for entry in found}, time.time()
        if name is None:
            name = next(f"{role}-{number}" for number in range(1, MAX_ENTRIES + 2) if f"{role}-{number}" not in taken)
        elif check_name(name) in {entry.name for entry in found if not entry.refusal(now)}:
            raise ConfigurationError(f"there is a key {name!r} already; revoke it first, or take another name")
        expires = None if lasts is None else now + lasts
        found.append(Entry(name=name, role=role, public=pair.public, made=now, expires=expires))
        _write_entries(folder, found)
    return keys.token(role, pair, address)


def entries(directory: str | os.PathLike[str]) -> list[Entry]:
    """Return all keys that the nodes of a cluster let in, or did."""
    return read_entries(Keys.load(directory).check_node())


def revoke(directory: str | os.PathLike[str], names: Sequence[str]) -> list[Entry]:
    """Revoke the keys of these names; return the revoked entries.

    Connections that are open end within a second, on every node that reads this directory.

    Raises
    ------
    ConfigurationError
        There is no such key that opens anything; none was revoked.
    """
    now = time.time()

    def change(entry: Entry) -> Entry:
        return replace(entry, revoked=now) if entry.name in names and not entry.refusal(now) else entry

    with _opened(directory) as folder:
        found = _read_entries(folder, Keys.load(folder.path))
        valid = {entry.name for entry in found if not entry.refusal(now)}
        if missing := set(names) - valid:
            raise ConfigurationError(
                f"no key {', '.join(map(repr, sorted(missing)))} opens anything; there are {', '.join(sorted(valid))}"
            )
        changed = [change(entry) for entry in found]
        _write_entries(folder, changed)
    return [new for old, new in zip(found, changed, strict=True) if new is not old]


def rotate(
    directory: str | os.PathLike[str], roles: Sequence[str] = KEY_ROLES, *, grace: float = GRACE_S
) -> dict[str, Pair]:
    """Make new pairs for roles; the old ones continue to open for ``grace`` seconds.

    Processes that read this directory take the new ones by themselves; those on other hosts need a copy of it before
    the old ones end. Tokens have their own keys, which do not change.
    """
    for role in roles:
        checks.one_of("a role", role, KEY_ROLES)
    checks.number("grace", grace, at_least=0)
    pairs = {role: new_pair() for role in roles}
    now = time.time()

    def change(entry: Entry) -> Entry:
        ends = now + grace
        rotated = entry.name == entry.role and entry.role in pairs and not entry.refusal(now)
        return replace(entry, expires=min(ends, entry.expires or ends)) if rotated else entry

    with _opened(directory) as folder:
        found = _read_entries(folder, Keys.load(folder.path))
        new = [Entry(name=role, role=role, public=pair.public, made=now) for role, pair in pairs.items()]
        _write_entries(folder, [*found, *new])  # the new keys are accepted before they are used, …
        for role, pair in pairs.items():
            _replace(folder, f"{role}.key", f"{pair.public}\n{pair.secret}\n")
        _write_entries(folder, [*map(change, found), *new])  # … and the old ones until then
    return pairs


@contextlib.contextmanager
def _opened(directory: str | os.PathLike[str], *, make: bool = False) -> Iterator[Folder]:
    """Hold the directory of keys; one process at a time changes what is in it."""
    if not isinstance(directory, str | os.PathLike):
        checks.refuse("a directory of keys", "a path", directory)
    path = Path(directory).absolute()
    try:
        folder = Folder(path.parent, path.name, make=make)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"there is no directory {path}; zmqps keys create makes one") from None
    with folder:
        fcntl.flock(folder.fd, fcntl.LOCK_EX)
        yield folder


def _read_entries(folder: Folder, keys: Keys) -> list[Entry]:
    keys.check_node()
    return read_entries(folder.path / AUTHORIZED)


def _write_entries(folder: Folder, found: Sequence[Entry]) -> None:
    now = time.time()
    kept = [entry for entry in found if now < max(entry.revoked or 0.0, entry.expires or 0.0, entry.made) + KEPT_S]
    kept = [entry for entry in found if entry in kept or not entry.refusal(now)]
    if len(kept) > MAX_ENTRIES:
        raise ConfigurationError(f"a cluster has at most {MAX_ENTRIES} keys")
    _replace(folder, AUTHORIZED, _HEAD + "".join(map(_table, kept)))


def _table(entry: Entry) -> str:
    times = {"made": entry.made, "expires": entry.expires, "revoked": entry.revoked}
    lines = [f'name = "{entry.name}"', f'role = "{entry.role}"', f'public = "{entry.public}"']
    lines += [f"{name} = {moment(seconds)}" for name, seconds in times.items() if seconds is not None]
    return "\n[[key]]\n" + "".join(f"{line}\n" for line in lines)


def _replace(folder: Folder, name: str, text: str) -> None:
    """Write a file as a whole or not at all: nodes read it at any time."""
    with folder.begin(f"{name}.new") as file:
        file.write(text.encode())
        os.fsync(file.fileno())
    os.rename(f"{name}.new", name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    os.fsync(folder.fd)
