"""Whether keys can be used, and are nobody else's."""

from __future__ import annotations

from collections.abc import Iterator

from zmqps.doctor.facts import Findings
from zmqps.doctor.rows import Row, counted, good, warning, wrong

#: What others than the owner may do with a file.
OTHERS = 0o077


def judge(findings: Findings) -> Iterator[Row]:
    """Yield rows on libraries that cannot encrypt, and on the directory of keys that was named."""
    for host, facts in findings.facts.items():
        if not facts.encrypts:
            row = wrong if findings.keys else warning
            yield row(host, "encryption", "libzmq has no CURVE", "install pyzmq's wheel there, which brings libsodium")
    if not findings.keys:
        return
    here = [host.name for host in findings.hosts if not host.login]
    for host, facts in findings.facts.items():
        if not facts.keys:
            if host in here:
                yield wrong(host, "keys", f"no {findings.keys}", f"zmqps keys create {findings.keys}")
            continue
        fine = True
        for file in facts.keys:
            if not file.own:
                fine = False
                yield wrong(host, "keys", f"{file.path} belongs to another user", "make new keys: these are theirs")
            elif file.mode & OTHERS:
                fine = False
                mode = "700" if file.folder else "600"
                yield wrong(host, "keys", f"others may use {file.path} ({file.mode:04o})", f"chmod {mode} {file.path}")
        if fine:
            number = counted(sum(not file.folder for file in facts.keys), "file")
            yield good(host, "keys", f"{number} in {findings.keys}, for this user alone")
