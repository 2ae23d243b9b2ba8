"""Whether all hosts run the same software, and find what `zmqps launch` needs: its directory, its script, rsync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from zmqps.doctor.facts import Code, CodeFacts, Findings
from zmqps.doctor.rows import Row, everywhere, good, warning, wrong
from zmqps.errors import RSYNC, SAME_VERSION, joined

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


def judge_versions(findings: Findings) -> Iterator[Row]:
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


HERE = "this host"
COPY = "share the directory, or copy the script's folder with --sync-code"


def judge_code(findings: Findings) -> Iterator[Row]:
    """Yield rows on the directory, the script and rsync of each host that a launch would use."""
    if findings.code is None:
        return
    used = [host for host in findings.hosts if host.coordinator or host.servers or host.workers]
    facts = {host.name: findings.facts[host.name].code for host in used if host.name in findings.facts}
    far = {host.name: facts[host.name] for host in used if host.login and host.name in facts}
    if facts:
        near = {name: found for name, found in facts.items() if name not in far}
        given = near if findings.code.copied else facts  # what is copied need not be there yet
        yield from _directory(findings.code, _is_made(findings.code), facts, given)
        yield from _script(findings.code, given)
    if far:
        yield from _rsync(findings.code, {HERE: findings.code.here, **far})


def _is_made(code: Code) -> bool:
    """Whether copying the script's folder makes the directory."""
    return code.copied and code.script.startswith(f"{code.directory.rstrip('/')}/")


def _directory(
    code: Code, is_made: bool, facts: Mapping[str, CodeFacts], given: Mapping[str, CodeFacts]
) -> Iterator[Row]:
    looked_at = given if is_made else facts
    problems = {name: found.problem for name, found in looked_at.items() if found.problem}
    row = wrong if code.script else warning  # without a script it may be that nothing is launched
    for problem in dict.fromkeys(problems.values()):
        names = [name for name in problems if problems[name] == problem]
        advice = f"{COPY}, or name another with --remote-directory" if not code.copied else "make it there"
        yield row(joined(names), "directory", f"{code.directory}: {problem}", advice)
    if looked_at and not problems:
        yield good(everywhere([*looked_at]), "directory", f"{code.directory} is there")


def _script(code: Code, given: Mapping[str, CodeFacts]) -> Iterator[Row]:
    if not code.script or not given:
        return
    missing = [name for name, found in given.items() if not found.script and not found.problem]
    others = [name for name, found in given.items() if found.script and found.script != code.here.script]
    if missing:
        yield wrong(joined(missing), "script", f"there is no {code.script}", COPY)
    if others:
        advice = "copy it there, or the whole folder with --sync-code"
        yield warning(joined(others), "script", f"{code.script} is not as it is here", advice)
    if not missing and not others and not any(found.problem for found in given.values()):
        yield good(everywhere([*given]), "script", f"{code.script} is the same as here")


def _rsync(code: Code, ends: Mapping[str, CodeFacts]) -> Iterator[Row]:
    """Yield what is wrong with rsync where it is needed; else say where it is, as one may want to copy."""
    unfit = {name: found.rsync or "none" for name, found in ends.items() if not _is_recent(found.rsync)}
    for version in dict.fromkeys(unfit.values()):
        names = joined(name for name in unfit if unfit[name] == version)
        if code.copied:
            yield wrong(names, "rsync", version, f"install the package rsync there, {RSYNC} or newer")
        else:
            yield good(names, "rsync", f"{version}; only --sync-code needs it, {RSYNC} or newer")
    if not unfit:
        yield good(everywhere(["all hosts"]), "rsync", joined(dict.fromkeys(found.rsync for found in ends.values())))


def _is_recent(version: str) -> bool:
    return _numbers(version) >= _numbers(RSYNC)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]
