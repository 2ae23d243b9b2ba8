"""The speed between each two hosts, compared with their interfaces', and how fast a step can be with it.

With M bytes of model, n workers and k servers each way, a worker's host carries M and a server's n·M/k. The slowest
host for what it has to carry sets the bound. What stays within a host crosses no wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zmqps.doctor.facts import Findings, Host, HostFacts, Interface, Rate
from zmqps.doctor.rows import Row, good, warning, wrong
from zmqps.errors import counted, num_bytes, seconds

#: Of a wire TCP leaves 94 %; much less, and something is the matter.
SLOW = 0.6
#: The two directions of a pair differ by more than this, and something is the matter.
UNEVEN = 2.0
#: A round trip on a LAN takes less.
FAR_S = 5e-3
#: More pairs than this, and those that are good share a row.
MAX_ROWS = 10
BYTES_PER_MBIT = 1_000_000 / 8


def judge_wires(findings: Findings) -> Iterator[Row]:
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
        return warning(where, "latency", found, "this is not a LAN: take asynchronous training")
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


#: Bytes of float32, by name: those of `python -m bench`.
MODELS = {"resnet50": 102_228_128, "gpt2-small": 497_759_232}
TITLES = {"resnet50": "ResNet-50", "gpt2-small": "GPT-2 small"}
#: Wires that a plan without hosts is held against.
GIGABIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Bound:
    """A step takes so long at least, because of this wire."""

    seconds: float
    wire: str


def judge_bound(findings: Findings) -> Iterator[Row]:
    """Yield the bound of a step for the model, if one was named."""
    model = findings.model
    servers = sum(host.servers for host in findings.hosts)
    workers = sum(host.workers for host in findings.hosts)
    if model is None or not servers or not workers:
        return
    nodes = f"{counted(workers, 'worker')} and {counted(servers, 'server')}"
    title = f"{TITLES.get(model.name, model.name)} with {nodes}"
    if len(findings.hosts) == 1:
        most = max(model.nbytes, workers * model.nbytes / servers)
        times = f"{seconds(most / GIGABIT)} a step at 1 Gbit/s, {seconds(most / GIGABIT / 10)} at 10"
        text = "nothing crosses a wire here; with a host for each, at best"
        yield good(findings.hosts[0].name, "step", f"{title}: {text} {times}")
        return
    plain, encrypted = (bound(findings, model.nbytes, encrypted=flag) for flag in (False, True))
    if plain is None:
        return
    found = f"{title}: at best {seconds(plain.seconds)} a step"
    found += f", encrypted {seconds(encrypted.seconds)}" if encrypted else ""
    found += f"; {plain.wire} is the limit; bf16 would give {seconds(plain.seconds / 2)}"
    yield good("all hosts", "step", found)


def traffic(host: Host, hosts: Sequence[Host], nbytes: int) -> float:
    """Return the bytes that a host's wire carries a step, each way: gradients one way and values the other."""
    servers, workers = sum(entry.servers for entry in hosts), sum(entry.workers for entry in hosts)
    share = host.servers / servers
    return nbytes * (share * (workers - host.workers) + host.workers * (1 - share))


def bound(findings: Findings, nbytes: int, *, encrypted: bool) -> Bound | None:
    """Return the bound of a step; None where the wires that matter were not measured."""
    rates = {
        (rate.source, rate.target): rate.nbytes_per_s
        for rate in findings.rates
        if rate.encrypted == encrypted and rate.nbytes_per_s > 0
    }
    hosts = [host for host in findings.hosts if host.servers or host.workers]
    servers = sum(host.servers for host in hosts)
    bounds = []
    for host in hosts:
        carried = traffic(host, hosts, nbytes)
        out = max((speed for (source, _), speed in rates.items() if source == host.name), default=0.0)
        into = max((speed for (_, target), speed in rates.items() if target == host.name), default=0.0)
        if carried and not (out and into):
            return None
        if carried:
            bounds.append(Bound(carried / min(out, into), f"the wire of {host.name}"))
    for one in hosts:
        for other in hosts:
            if one is not other and (speed := rates.get((one.name, other.name))):
                pushed, pulled = one.workers * other.servers, one.servers * other.workers
                way = f"the way from {one.name} to {other.name}"
                bounds.append(Bound(nbytes * (pushed + pulled) / servers / speed, way))
    return max(bounds, key=lambda entry: entry.seconds, default=None)
