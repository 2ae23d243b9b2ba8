"""The speed between each two hosts, compared with their interfaces'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zmqps.doctor.facts import Findings, HostFacts, Interface, Rate
from zmqps.doctor.rows import Row, good, warning, wrong
from zmqps.errors import num_bytes, seconds

#: Of a wire TCP leaves 94 %; much less, and something is the matter.
SLOW = 0.6
#: The two directions of a pair differ by more than this, and something is the matter.
UNEVEN = 2.0
#: A round trip on a LAN takes less.
FAR_S = 5e-3
#: More pairs than this, and those that are good share a row.
MAX_ROWS = 10
BYTES_PER_MBIT = 1_000_000 / 8


def judge(findings: Findings) -> Iterator[Row]:
    """Yield a row for each pair; one for all that are good where there are many."""
    order = {host.name: number for number, host in enumerate(findings.hosts)}
    pairs = {tuple(sorted((order[rate.source], order[rate.target]))) for rate in findings.rates}
    names = [host.name for host in findings.hosts]
    rows = [_pair(findings, names[one], names[other]) for one, other in sorted(pairs)]
    fine = [row for row in rows if row.verdict == "good"]
    if len(fine) > MAX_ROWS:
        rows = [row for row in rows if row.verdict != "good"]
        plain = [rate for rate in findings.rates if not rate.encrypted and not rate.problem]
        slowest = min(plain, key=lambda rate: rate.nbytes_per_s)
        text = f"{num_bytes(slowest.nbytes_per_s)}/s from {slowest.source} to {slowest.target}"
        yield good("all hosts", "bandwidth", f"{len(fine)} pairs; the slowest: {text}")
    yield from rows
    if findings.unmeasured:
        yield warning(
            "all hosts", "bandwidth", f"{findings.unmeasured} pairs of many were not measured",
            "look at fewer hosts at a time to measure them all",
        )  # fmt: skip


def interface_of(facts: HostFacts | None, address: str) -> Interface | None:
    """Return the interface that has an address."""
    for interface in facts.interfaces.values() if facts else ():
        if address in (entry.partition("%")[0] for entry in interface.addresses):
            return interface
    return None


def _pair(findings: Findings, one: str, other: str) -> Row:
    where = one if one == other else f"{one} ⇄ {other}"
    rates = [rate for rate in findings.rates if {rate.source, rate.target} == {one, other}]
    plain = [rate for rate in rates if not rate.encrypted]
    encrypted = [rate for rate in rates if rate.encrypted and not rate.problem]
    if stuck := [rate for rate in plain if rate.problem]:
        found = f"{stuck[0].source} connects to {stuck[0].target}, but no data come through: {stuck[0].problem}"
        return wrong(where, "bandwidth", found, "large packets are lost on the way: set the same MTU on both")
    reaches = [r for r in findings.reaches if {r.source, r.target} == {one, other} and not r.problem]
    latency = min((reach.latency_s for reach in reaches), default=0.0)
    ends = {end for r in reaches for end in ((r.source, r.near), (r.target, r.far))}
    interfaces = [i for name, address in sorted(ends) if (i := interface_of(findings.facts.get(name), address))]
    wire = min((i.speed_mbit * BYTES_PER_MBIT for i in interfaces if i.speed_mbit > 0), default=0.0)
    found = f"{seconds(latency)}, {_speeds(plain)}"
    found += f", encrypted {_speeds(encrypted)}" if encrypted else ""
    found += f"; the interface can {num_bytes(wire)}/s" if wire else ""
    speeds = [rate.nbytes_per_s for rate in plain]
    if wire and min(speeds) < SLOW * wire:
        advice = "see `ethtool` for what the two have negotiated, and what else uses the network"
        return warning(where, "bandwidth", found, advice)
    if max(speeds) > UNEVEN * min(speeds) and one != other:
        return warning(where, "bandwidth", found, "measure again; if it stays so, the duplex or a cable is the matter")
    if latency > FAR_S:
        return warning(where, "latency", found, "this is no LAN: take asynchronous training")
    if len(mtus := {i.mtu for i in interfaces}) > 1:
        text = f"{found}; MTU {' and '.join(map(str, sorted(mtus)))}"
        return warning(where, "MTU", text, "set the same MTU on all interfaces of a network")
    return good(where, "bandwidth", found)


def _speeds(rates: Sequence[Rate]) -> str:
    """Return the speed there and back: once, if there is only one or they are nearly the same."""
    speeds = [rate.nbytes_per_s for rate in rates]
    if max(speeds) < 1.1 * min(speeds):
        return f"{num_bytes(min(speeds))}/s"
    return " and ".join(f"{num_bytes(speed)}/s" for speed in speeds)
