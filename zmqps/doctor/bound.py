"""How quick a step can be at best, for a model and a placement, on the wires as measured.

With M bytes of model, n workers and k servers each way, a worker's host carries M and a server's n·M/k. The slowest
host for what it has to carry sets the bound. What stays within a host crosses no wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zmqps.doctor.facts import Findings, Host
from zmqps.doctor.rows import Row, good
from zmqps.errors import counted, seconds

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


def judge(findings: Findings) -> Iterator[Row]:
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
