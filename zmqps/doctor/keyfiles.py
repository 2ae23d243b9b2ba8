"""Whether keys are usable, private, and the same on all hosts with nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from zmqps.doctor.facts import Findings, Host, KeyFile
from zmqps.doctor.rows import Row, good, warning, wrong
from zmqps.errors import counted, joined
from zmqps.keys.keyring import AUTHORIZED, CLUSTER_PUBLIC, CLUSTER_SECRET

#: What others than the owner may do with a file. Root's may be read by a group: so it hands keys to a service.
OTHERS, OTHERS_OF_ROOTS = 0o077, 0o027
#: Without these a coordinator or server does not start.
OF_NODES = (CLUSTER_PUBLIC, CLUSTER_SECRET, "node.key", AUTHORIZED)


def judge(findings: Findings) -> Iterator[Row]:
    """Yield rows on libraries that cannot encrypt, and on the directory of keys that was named."""
    for name, facts in findings.facts.items():
        if not facts.encrypts:
            row = wrong if findings.keys else warning
            yield row(name, "encryption", "libzmq has no CURVE", "install pyzmq's wheel there, which brings libsodium")
    if not findings.keys:
        return
    copies = _Copies(findings)
    for host in copies.hosts:
        yield from _files(host, copies)
    yield from _differences(copies)


class _Copies:
    """The directories of keys that hosts have, and how one gets what another one has.

    Parameters
    ----------
    findings
        What was found on the hosts.
    """

    def __init__(self, findings: Findings) -> None:
        self.folder = str(PurePath(findings.keys))
        self._files = {name: facts.keys for name, facts in findings.facts.items()}
        self.hosts = [host for host in findings.hosts if host.name in self._files]
        #: Those that need the whole directory.
        self.nodes = [host for host in self.hosts if host.servers or host.coordinator]
        # The coordinator's host is where keys are made and revoked; else it is this one.
        self._order = sorted(self.hosts, key=lambda host: (not host.coordinator, bool(host.login)))

    def of(self, host: Host) -> Sequence[KeyFile]:
        """Return what there is of the directory on a host."""
        return self._files[host.name]

    def names(self, host: Host) -> dict[str, KeyFile]:
        """Return the files of the directory itself, by name."""
        paths = [(PurePath(file.path), file) for file in self.of(host) if not file.folder]
        return {path.name: file for path, file in paths if str(path.parent) == self.folder}

    def holder(self, *names: str) -> Host | None:
        """Return the host whose copies count, of those that have these files."""
        return next((host for host in self._order if set(names) <= self.names(host).keys()), None)

    def command(self, source: Host | None, target: Host, *names: str) -> str:
        """Return what copies files, or the whole directory, from one host to another; None: from this one."""
        words = ["scp", *(["-3"] if source and source.login and target.login else []), "-p" if names else "-pr"]
        paths = [f"{self.folder}/{name}" for name in names] or [self.folder]
        there = _place(target, f"{self.folder}/" if names else self.folder)
        return " ".join([*words, *(_place(source, path) for path in paths), there])


def _place(host: Host | None, path: str) -> str:
    """Return a path as scp takes it; None: on this host."""
    if host is None or not host.login:
        return shlex.quote(path if not path.startswith("-") else f"./{path}")
    user, at, name = host.login.rpartition("@")
    name = f"[{name}]" if ":" in name else name
    return shlex.quote(f"scp://{user}{at}{name}:{host.port}/{path}" if host.port else f"{user}{at}{name}:{path}")


def _files(host: Host, copies: _Copies) -> Iterator[Row]:
    """Yield rows on the rights of a host's files, and on those that are missing."""
    files, has, folder = copies.of(host), copies.names(host), copies.folder
    missing = [name for name in OF_NODES if name not in has] if host in copies.nodes else []
    source = copies.holder(*missing)
    if not files and not host.login and copies.holder(*OF_NODES) is None:
        yield wrong(host.name, "keys", f"no {folder}", f"zmqps keys create {shlex.quote(folder)}")
    elif missing and not files:
        advice = f"{copies.command(source, host)}; not for zmqps launch, which hands keys out"
        yield wrong(host.name, "keys", f"no {folder}", advice)
    elif missing:
        advice = copies.command(source, host, *missing) if source else "take all that zmqps keys create has made"
        yield wrong(host.name, "keys", f"no {joined(missing)} in {folder}", advice)
    fine = bool(files) and not missing
    for file in files:
        if file.roots and file.folder and not file.own:
            continue  # the files count
        if not (file.own or file.roots):
            fine = False
            yield wrong(host.name, "keys", f"{file.path} belongs to another user", "make new keys: these are theirs")
        elif file.mode & (OTHERS if file.own else OTHERS_OF_ROOTS) and not file.path.endswith(f"/{CLUSTER_PUBLIC}"):
            fine = False
            mode = "700" if file.folder else "600"
            yield wrong(host.name, "keys", f"others may use {file.path} ({file.mode:04o})", f"chmod {mode} {file.path}")
    if fine:
        number = counted(sum(not file.folder for file in files), "file")
        yield good(host.name, "keys", f"{number} in {folder}, which others cannot use")


def _differences(copies: _Copies) -> Iterator[Row]:
    """Yield rows on copies that are not the same as the one that counts; where only workers run, no list is needed."""
    strangers = []
    for name in (CLUSTER_PUBLIC, AUTHORIZED):
        source = copies.holder(name)
        if source is None or not (first := copies.names(source)[name].digest):
            continue
        for host in copies.hosts:
            file = copies.names(host).get(name)
            if file is None or file.digest in ("", first):
                continue
            found = f"{name} is not the same as on {source.name}"
            if name == CLUSTER_PUBLIC:
                strangers.append(host)
                new = f"remove {copies.folder} there, and {copies.command(source, host)}"
                advice = new if host in copies.nodes else "give its workers a token (zmqps keys token), or worker.key"
                yield wrong(host.name, "keys", found, f"nodes refuse it; {advice}")
            elif host not in strangers and (host in copies.nodes or not copies.nodes):
                yield warning(host.name, "keys", found, f"copy it: {copies.command(source, host, name)}")
