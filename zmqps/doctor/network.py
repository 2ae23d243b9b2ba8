"""Whether the hosts know each other's names, and reach each other's ports."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from zmqps.doctor.facts import Findings, Reach
from zmqps.doctor.rows import Row, Verdict, everywhere, good, warning, wrong
from zmqps.errors import joined

FREE = "any free port"
RESOLVE = "enter it in DNS or /etc/hosts, or write its address in the hosts file"


def judge(findings: Findings) -> Iterator[Row]:
    """Yield rows on names, on ports, and on which host reaches which."""
    yield from _names(findings)
    yield from _ports(findings)


# --- names ------------------------------------------------------------------------------------


def is_address(name: str) -> bool:
    """Whether a host is named by its address."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether an address is one that leads every host to itself."""
    return address == "localhost" or (
        is_address(address) and ipaddress.ip_address(address.partition("%")[0]).is_loopback
    )


def _names(findings: Findings) -> Iterator[Row]:
    """Yield what is wrong with names; a name that no host has to resolve only gives a warning."""
    names = [host.name for host in findings.hosts if not is_address(host.name) and host.name != "localhost"]
    if not names or len(findings.facts) < 2:
        return
    fine = True
    for name in names:
        row = wrong if findings.addresses.get(name, name) == name else warning
        answers = {host: facts.names.get(name, []) for host, facts in findings.facts.items()}
        without = [host for host, found in answers.items() if not found]
        if without:
            fine = False
            yield row(joined(without), "names", f"cannot resolve {name}", RESOLVE)
        if astray := [host for host, found in answers.items() if host != name and any(map(is_loopback, found))]:
            fine = False
            yield row(
                joined(astray), "names", f"{name} leads to {answers[astray[0]][0]}, back to the host that asks", RESOLVE
            )
        elif any(map(is_loopback, answers.get(name, []))):
            fine = False
            advice = "take that line out of its /etc/hosts, or start its nodes with --interface or --advertise"
            yield warning(name, "names", f"calls itself {answers[name][0]}, where no other host reaches it", advice)
    if fine:
        yield good(everywhere([*findings.facts]), "names", f"every host can resolve {joined(names)}")


# --- ports ------------------------------------------------------------------------------------


def _ports(findings: Findings) -> Iterator[Row]:
    """Yield rows on ports; of a host where nothing will listen they are only warnings."""
    listening = {host.name for host in findings.hosts if host.servers or host.coordinator}
    idle = {host.name for host in findings.hosts if host.name not in listening} if listening else set()
    taken = [port for port in findings.ports if port.owner]
    for port in taken:
        advice = "end it, or choose another port with --ports, or --address for the coordinator's"
        judged = warning if port.host in idle else wrong
        yield judged(port.host, f"port {port.port}", f"is in use by {port.owner}", advice)
    failed: dict[tuple[str, str, str], list[Reach]] = {}
    for reach in sorted(findings.reaches, key=lambda reach: (reach.target, reach.port, reach.source)):
        if reach.problem:
            failed.setdefault((reach.target, reach.problem, ""), []).append(reach)
    for (target, problem, _), reaches in failed.items():
        row = unreachable(target, problem, reaches, findings.addresses)
        if target in idle:
            row = replace(row, verdict=Verdict.WARNING, advice=f"{row.advice}; only servers there would need it")
        yield row
    bad = {port.port for port in taken} | {reach.port for reach in findings.reaches if reach.problem}
    fine = list(dict.fromkeys(port.port for port in findings.ports if port.port not in bad))
    if fine:
        others = ", and reached by all others" if len(findings.facts) > 1 else ""
        yield good(everywhere([*findings.facts]), "ports", f"{named(fine)} free{others}")


def named(ports: Iterable[int]) -> str:
    """Return ports in words: ``5570, 5571–5580 and any free port``."""
    runs: list[list[int]] = []
    for port in sorted(set(ports) - {0}):
        if runs and port == runs[-1][-1] + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return joined([*texts, *([FREE] if 0 in ports else [])], most=8)


def unreachable(target: str, problem: str, reaches: list[Reach], addresses: Mapping[str, str]) -> Row:
    """Return the row of what cannot be reached: from where, and why."""
    sources = joined(dict.fromkeys(reach.source for reach in reaches))
    ports = list(dict.fromkeys(reach.port for reach in reaches))
    address = addresses.get(target, target)
    found, advice = {
        "refused": (f"is refused by {address}", "a firewall rejects it, or the address is another host's"),
        "silent": (f"gets no answer of {address}", f"a firewall drops it: open {named(ports)} there"),
        "no route": (f"has no way to {address}", f"see `ip route get {address}` there"),
        "unresolved": (f"cannot resolve {address}", RESOLVE),
        "stranger": (f"finds another program at {address}", "the name or address leads to another host"),
    }.get(problem, (f"cannot reach {address}: {problem}", "see the system's documentation of this error"))
    if problem == "silent" and ports == [0]:
        advice = "a firewall lets only some ports through: open a few and name them with --ports 5571-5580"
    return wrong(f"{sources} → {target}", named(ports) if 0 in ports else f"port {named(ports)}", found, advice)
