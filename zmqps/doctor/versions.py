"""Whether all hosts run the same software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from zmqps.doctor.facts import Findings
from zmqps.doctor.rows import Row, everywhere, good, warning, wrong
from zmqps.errors import SAME_VERSION, joined

#: Shown where all are the same; the others only where they differ.
SHOWN = ("zmqps", "Python", "libzmq", "pyzmq", "numpy", "msgpack", "numba")
HIDDEN = ("protocol", "source")
#: What to do about a difference, and whether a run fails by it.
ADVICE: Mapping[str, tuple[bool, str]] = {
    "zmqps": (True, SAME_VERSION),
    "protocol": (True, "these hosts refuse each other: install the same zmqps everywhere"),
    "source": (True, "the number is the same, the files are not: bring all hosts to the same commit"),
    "Python": (False, "take the same minor version everywhere; --python names another one"),
    "libzmq": (False, "install the same pyzmq everywhere"),
    "pyzmq": (False, "install the same pyzmq everywhere"),
    "numpy": (False, "install the same numpy everywhere: deterministic=True gives the same bits with one version only"),
    "msgpack": (False, "install the same msgpack everywhere"),
    "numba": (False, "install the same numba everywhere: deterministic=True gives the same bits with one version only"),
}


def judge(findings: Findings) -> Iterator[Row]:
    """Yield a row of all versions, or one for each that differs."""
    facts = findings.facts
    if not facts:
        return
    same = []
    for name in (*SHOWN, *HIDDEN):
        found = {host: entry.versions.get(name, "none") for host, entry in facts.items()}
        compared = {host: _compared(name, text) for host, text in found.items()}
        if len(set(compared.values())) == 1:
            same.append((name, next(iter(found.values()))))
        elif not (name in HIDDEN and len({entry.versions.get("zmqps") for entry in facts.values()}) > 1):
            yield _difference(name, found, compared)
    texts = [f"{name} {text}" for name, text in same if name in SHOWN]
    if texts:
        yield good(everywhere([*facts]), "versions", ", ".join(texts))


def _compared(name: str, version: str) -> str:
    """Return what of a version must be the same: of Python's the first two numbers."""
    return ".".join(version.split(".")[:2]) if name == "Python" else version


def _difference(name: str, found: Mapping[str, str], compared: Mapping[str, str]) -> Row:
    [(usual, _)] = Counter(compared.values()).most_common(1)
    others = {host: found[host] for host in found if compared[host] != usual}
    shown = next(found[host] for host in found if compared[host] == usual)
    texts = [f"{text} on {joined(host for host in others if others[host] == text)}" for text in _unique(others)]
    fails, advice = ADVICE[name]
    row = wrong if fails else warning
    return row(
        joined(others), name, f"{', '.join(texts)}; {shown} on {joined(h for h in found if h not in others)}", advice
    )


def _unique(texts: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(texts.values()))
