"""Stored keys: the files of a directory, and the token that is all a worker needs.

A cluster has one pair of keys that all its nodes show to connecting peers, and a pair for each that may connect. A
directory has its owner's part of them, readable only by the owner:

====================  ==================================================================================
``cluster.pub``       the public key of the cluster's nodes, which identifies them
``cluster.key``       their secret: only on hosts with nodes
``<role>.key``        the pair that a process of this role shows: ``node``, ``worker``, ``observer``
``authorized.toml``   the keys that nodes accept: names, roles and public keys; only on hosts with nodes
====================  ==================================================================================
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zmqps import checks
from zmqps.core.protocol.security.roles import ALLOWS, KEY_ROLES, KeyHolder
from zmqps.errors import ConfigurationError, UnsafeFileError, printable
from zmqps.files import open_plain

CLUSTER_PUBLIC, CLUSTER_SECRET, AUTHORIZED = "cluster.pub", "cluster.key", "authorized.toml"
#: Of `authorized.toml`; there cannot be more members at a time.
MAX_ENTRIES = 8192
MAX_FILE_NBYTES = 4 << 20
#: Of a key's name, which is shown in logs and tables.
MAX_NAME_CHARS = 100
TOKEN_MARK = "zmqps1_"
MAX_TOKEN_CHARS = 2048
DIGEST_NBYTES = 8

_Z85 = re.compile(r"[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_ENTRY = {"name": str, "role": str, "public": str, "made": datetime.datetime}
_OPTIONAL = {"expires": datetime.datetime, "revoked": datetime.datetime}


@dataclass(frozen=True, slots=True)
class Pair:
    """A public and a secret key of CURVE, in Z85."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key that nodes accept, or accepted before; times are seconds of the clock (`time.time`)."""

    name: str
    role: str
    public: str
    made: float
    expires: float | None = None
    revoked: float | None = None

    @property
    def holder(self) -> KeyHolder:
        """The part that machines use."""
        return KeyHolder(self.role, self.name)

    def refusal(self, now: float) -> str:
        """Return why this key is invalid at a time; empty: it is valid."""
        if self.revoked is not None:
            return f"{self.holder} was revoked at {moment(self.revoked)}"
        if self.expires is not None and now >= self.expires:
            return f"{self.holder} has expired at {moment(self.expires)}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys that a process shows, and by which it identifies others.

    Attributes
    ----------
    source
        Their source, for errors.
    cluster
        The public key of the cluster's nodes.
    secret
        The nodes' secret; empty for all others.
    pairs
        By role.
    directory
        The directory to reload them from when they change; None: from a token.
    address
        The coordinator's endpoint, if a token has it.
    """

    source: str
    cluster: str
    secret: str = field(default="", repr=False)
    pairs: Mapping[str, Pair]
    directory: Path | None = None
    address: str = ""

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Keys:
        """Return the keys in a directory.

        Raises
        ------
        ConfigurationError
            There are none, or a file is not in the form that ``zmqps keys`` writes.
        UnsafeFileError
            Other users may read a file, or have put it there.
        """
        if not isinstance(directory, str | os.PathLike):
            checks.refuse("keys", "a path", directory)
        folder = Path(directory)
        found = {name: _read(folder / name) for name in (CLUSTER_PUBLIC, CLUSTER_SECRET)}
        public, secret = (_key(text, folder / name) if text else "" for name, text in found.items())
        if not public:
            raise ConfigurationError(
                f"no keys in {_shown(folder)}: {CLUSTER_PUBLIC} is missing; make some with zmqps keys create"
            )
        pairs = {}
        for role in KEY_ROLES:
            path = folder / f"{role}.key"
            text = _read(path)
            if text:
                first, _, second = text.strip().partition("\n")
                pairs[role] = Pair(_key(first, path), _key(second, path))
        return cls(source=_shown(folder), cluster=public, secret=secret, pairs=pairs, directory=folder)

    @classmethod
    def of_token(cls, token: str) -> Keys:
        """Return the keys in a token; raise `ConfigurationError` for any other text."""
        advice = "; copy all of what zmqps keys token has printed"
        if not isinstance(token, str) or not token.strip().startswith(TOKEN_MARK) or len(token) > MAX_TOKEN_CHARS:
            raise ConfigurationError(f"that is not a token: a token begins with {TOKEN_MARK}{advice}")
        try:
            data = base64.b64decode(token.strip()[len(TOKEN_MARK) :].encode(), altchars=b"-_", validate=True)
            body, digest = data[:-DIGEST_NBYTES], data[-DIGEST_NBYTES:]
            role, cluster, public, secret, address = body.decode().split("\n")
        except (binascii.Error, ValueError):
            raise ConfigurationError(f"this token is damaged{advice}") from None
        if hashlib.sha256(body).digest()[:DIGEST_NBYTES] != digest or role not in KEY_ROLES:
            raise ConfigurationError(f"this token is damaged{advice}")
        for key in (cluster, public, secret):
            if not _Z85.fullmatch(key):
                raise ConfigurationError(f"this token is damaged{advice}")
        return cls(source="the token", cluster=cluster, pairs={role: Pair(public, secret)}, address=address)

    def token(self, role: str, pair: Pair, address: str) -> str:
        """Return the token: one string with everything needed to join with a pair."""
        body = "\n".join((role, self.cluster, pair.public, pair.secret, address)).encode()
        digest = hashlib.sha256(body).digest()[:DIGEST_NBYTES]
        return TOKEN_MARK + base64.urlsafe_b64encode(body + digest).decode()

    def pair(self, role: str) -> Pair:
        """Return the pair of a server, worker, observer, or of a client of the coordinator (``operator``).

        Raises
        ------
        ConfigurationError
            These keys are for another role.
        """
        fitting = [of for of, roles in ALLOWS.items() if role in roles][::-1] if role != "operator" else list(ALLOWS)
        for of in fitting:
            if of in self.pairs:
                return self.pairs[of]
        have = " and ".join(self.pairs) or "nobody"
        raise ConfigurationError(f"{self.source} is for {have}, whose key does not allow to be a {role}")

    def check_node(self) -> Path:
        """Return the file with the accepted keys; raise `ConfigurationError` if these are not a node's keys."""
        if not self.secret or self.directory is None:
            raise ConfigurationError(
                f"{self.source} does not hold the keys of a node ({CLUSTER_SECRET}); a coordinator or server needs the "
                "whole directory that zmqps keys create has made"
            )
        return self.directory / AUTHORIZED

    def renewed(self) -> Keys:
        """Return the present version of these keys, which may have been rotated meanwhile."""
        if self.directory is None:
            return self
        with contextlib.suppress(ConfigurationError):
            return replace(Keys.load(self.directory), address=self.address)
        return self


def find_keys(keys: str | os.PathLike[str] | None, token: str | None, environment: Mapping[str, str]) -> Keys | None:
    """Return the keys of a process, from arguments or else from ``ZMQPS_TOKEN`` and ``ZMQPS_KEYS``.

    Raises
    ------
    ConfigurationError
        Both were given, or they cannot be read.
    """
    if keys is not None and token is not None:
        raise ConfigurationError("give either keys or a token: each identifies this process")
    if keys is None and token is None:
        token = environment.get("ZMQPS_TOKEN") or None
        keys = None if token else environment.get("ZMQPS_KEYS") or None
    if token is not None:
        return Keys.of_token(token)
    return None if keys is None else Keys.load(keys)


def load_node_keys(directory: str | os.PathLike[str] | None) -> Keys | None:
    """Return the keys of a coordinator or server; None without keys.

    Raises
    ------
    ConfigurationError, UnsafeFileError
        They cannot be read, or are not a node's.
    """
    if directory is None:
        return None
    keys = Keys.load(directory)
    read_entries(keys.check_node())
    return keys


def read_entries(path: Path) -> list[Entry]:
    """Return the keys that nodes accept, or accepted before.

    Raises
    ------
    ConfigurationError
        The file is missing, or not in the form that ``zmqps keys`` writes.
    UnsafeFileError
        Other users may write to it.
    """
    text = _read(path)
    if not text:
        raise ConfigurationError(f"{path} is missing: without it a node would let no peer in")
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot read {path}: {error!s:.200}") from None
    rows = found.get("key", [])
    if set(found) - {"key"} or not isinstance(rows, list) or len(rows) > MAX_ENTRIES:
        raise ConfigurationError(f"{path} is a list of at most {MAX_ENTRIES} tables [[key]], and nothing else")
    return [_entry(row, path) for row in rows]


def moment(seconds: float) -> str:
    """Return a time in the form of files and messages."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_name(name: str) -> str:
    """Return the name of a key; raise `ConfigurationError` for what cannot be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise ConfigurationError(
            f"{checks.shown(name):.120} cannot be a key's name: letters, digits and . _ @ -, at most {MAX_NAME_CHARS}"
        )
    return name


def _entry(row: Any, path: Path) -> Entry:
    kinds = {**_ENTRY, **_OPTIONAL}
    good = isinstance(row, dict) and set(_ENTRY) <= set(row) <= set(kinds)
    if not good or not all(type(value) is kinds[name] for name, value in row.items()):
        raise ConfigurationError(f"{path}: a table [[key]] has {', '.join(_ENTRY)}, perhaps {' and '.join(_OPTIONAL)}")
    times = {name: value for name, value in row.items() if isinstance(value, datetime.datetime)}
    if row["role"] not in KEY_ROLES or any(time.tzinfo is None for time in times.values()):
        raise ConfigurationError(f"{path}: a role is one of {', '.join(KEY_ROLES)}, and a time ends in Z")
    try:
        seconds = {name: time.timestamp() for name, time in times.items()}
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"{path}: {error!s:.200}") from None
    return Entry(name=check_name(row["name"]), role=row["role"], public=_key(row["public"], path), **seconds)


def _key(text: str, path: Path) -> str:
    if not _Z85.fullmatch(text.strip()):
        raise ConfigurationError(f"{path} does not hold a key of 40 characters (Z85); it is damaged, or another file")
    return text.strip()


def _read(path: Path) -> str:
    """Return the content of a file that only its owner may read, this user or root; empty if there is no file.

    Links are followed, because a mounted secret of Kubernetes is one: the target of the link is checked.
    """
    try:
        fd = open_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except UnsafeFileError as error:
        raise UnsafeFileError(path=_shown(path), why=error.why, advice=error.advice) from None
    except ValueError:
        raise ConfigurationError(f"{_shown(path)} cannot be a file's name") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {_shown(path)}: {error.strerror}") from None
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if facts.st_size > MAX_FILE_NBYTES:
            raise UnsafeFileError(path=_shown(path), why="it is not a plain file of keys", advice="remove it")
        if facts.st_uid not in (0, os.geteuid()):
            raise UnsafeFileError(
                path=_shown(path), why=f"user {facts.st_uid} owns it", advice="use keys that only you can read"
            )
        others = 0o077 if facts.st_uid == os.geteuid() else 0o027
        if facts.st_mode & others and path.name != CLUSTER_PUBLIC:
            raise UnsafeFileError(
                path=_shown(path), why="others may read or change it", advice=f"chmod 600 {_shown(path)}"
            )
        data = file.read(MAX_FILE_NBYTES)
    try:
        return data.decode()
    except ValueError:
        raise ConfigurationError(f"{_shown(path)} does not hold text; it is damaged, or another file") from None


def version_of(path: Path) -> tuple[int, ...]:
    """Return a value that changes with a file, its owner and its mode; empty if it cannot be found."""
    try:
        facts = os.stat(path)
    except OSError:
        return ()
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino


def _shown(path: Path) -> str:
    """Return a path in a form for logs and errors, whatever characters it has."""
    return printable(str(path)[:200].encode(errors="backslashreplace").decode())
