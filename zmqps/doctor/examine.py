"""Looks at hosts and at the network between them: probes everywhere, what they find of each other, a verdict."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from zmqps.doctor import keyfiles, network, resources, running
from zmqps.doctor.facts import Clock, Code, Findings, Host, HostFacts, Model, Port, Rate, Reach, read
from zmqps.doctor.host import local_address_towards
from zmqps.doctor.remote import START_S, ProbeError, RemoteProbe
from zmqps.doctor.rows import Row, Verdict
from zmqps.doctor.software import judge_code, judge_versions
from zmqps.doctor.speed import judge_bound, judge_wires
from zmqps.errors import ProtocolError


def rounds(names: Sequence[str], most: int) -> list[list[tuple[str, str]]]:
    """Return rounds of pairs such that every two hosts meet once, as in a tournament; ``most`` rounds at most.

    The circle method: the first stays, all others go around. A host alone is measured with itself.
    """
    if len(names) == 1:
        return [[(names[0], names[0])]]
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found[:most]


#: Seconds for an answer that takes no work, and beyond what work takes.
ANSWER_S = 10.0
#: Seconds until a host that does not answer a knock counts as silent.
KNOCK_S = 2.0
#: Each direction of each pair is measured for so long, plain and again encrypted, and takes up to twice that.
MEASURE_S = 0.2
#: … or until so much has arrived.
MEASURE_NBYTES = 128 << 20
#: Rounds of pairs that are measured; more hosts than this, and some pairs are left out.
MAX_ROUNDS = 31
CLOCK_ROUND_TRIPS = 5
LOOPBACK = ("127.", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to look at.

    Attributes
    ----------
    port, ports
        The coordinator's on its host, and those of servers on all of them: to bind, and to knock at from the others;
        0 for any free one.
    measured
        Whether bandwidth is measured.
    code
        What a launch will run, to be looked for on each host.
    nodes
        Nodes that run: a name, a host and a port each, which every host knocks at.
    """

    hosts: Sequence[Host]
    port: int = 0
    ports: Sequence[int] = (0,)
    measured: bool = True
    model: Model | None = None
    keys: str = ""
    code: Code | None = None
    nodes: Sequence[tuple[str, str, int]] = ()


@dataclass(slots=True)
class _Found:
    """What is known so far."""

    facts: dict[str, HostFacts] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    rates: list[Rate] = field(default_factory=list)


async def examine(wanted: Wanted) -> tuple[Findings, list[Reach]]:
    """Look; return the findings, and from which hosts the nodes that run can be reached."""
    found = _Found()
    async with AsyncExitStack() as stack:
        probes: dict[str, RemoteProbe] = {}
        for host in wanted.hosts:
            try:
                probes[host.name] = await stack.enter_async_context(RemoteProbe(host))
            except ProbeError as error:
                found.problems[host.name] = str(error)
        await _each(probes, found, lambda probe: _look(probe, wanted, found))
        await _each(probes, found, lambda probe: _compare_clocks(probe, found))
        addresses = addresses_of([probe.host for probe in probes.values()], found.facts)
        ports = await _listen(probes, found, wanted, addresses)
        reaches = _as_asked(await _knock(probes, found, _doors(ports, addresses)), ports)
        of_nodes = [(name, host, port, "") for name, host, port in wanted.nodes]
        to_nodes = await _knock(probes, found, of_nodes, also_own=True) if of_nodes else []
        await _each(probes, found, lambda probe: probe.ask(ANSWER_S, do="close"))
        unmeasured = await _measure(probes, found, reaches, addresses) if wanted.measured else 0
    facts = {host.name: found.facts[host.name] for host in wanted.hosts if host.name in found.facts}
    findings = Findings(
        hosts=wanted.hosts, facts=facts, problems=found.problems, clocks=found.clocks, rates=found.rates,
        addresses=addresses, ports=[entry.port for entry in ports], reaches=reaches, unmeasured=unmeasured,
        model=wanted.model, keys=wanted.keys, code=wanted.code,
    )  # fmt: skip
    return findings, to_nodes


@dataclass(frozen=True, slots=True)
class _Open:
    """A port that a probe listens on: as which it was asked for, which it is, and its token."""

    port: Port
    number: int
    token: str


async def _each(probes: dict[str, RemoteProbe], found: _Found, work: Any) -> None:
    """Do something with all probes at once; one that fails is out."""

    async def attempt(name: str, probe: RemoteProbe) -> None:
        try:
            await work(probe)
        except (ProbeError, ProtocolError) as error:
            found.problems[name] = str(error)
            del probes[name]

    async with asyncio.TaskGroup() as group:
        for name, probe in [*probes.items()]:
            group.create_task(attempt(name, probe))


async def _look(probe: RemoteProbe, wanted: Wanted, found: _Found) -> None:
    names = [host.name for host in wanted.hosts]
    code = {"directory": wanted.code.directory, "script": wanted.code.script} if wanted.code else {}
    answer = await probe.ask(START_S, do="look", names=names, keys=wanted.keys, **code)
    found.facts[probe.host.name] = read(HostFacts, answer)


async def _compare_clocks(probe: RemoteProbe, found: _Found) -> None:
    """Compare a clock with this host's; of several round trips the quickest says most."""
    best: Clock | None = None
    for _ in range(CLOCK_ROUND_TRIPS):
        begun = time.time()
        there = read(float, await probe.ask(ANSWER_S, do="time"))
        ended = time.time()
        clock = Clock(ahead_s=there - (begun + ended) / 2, error_s=(ended - begun) / 2)
        best = clock if best is None or clock.error_s < best.error_s else best
    assert best is not None
    found.clocks[probe.host.name] = best


def addresses_of(hosts: Iterable[Host], facts: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return by which address each host is reached from the others, as `zmqps launch` has it.

    That is what the user has said, or the address of the interface that the user has named, or the one at which ssh has
    reached the host; of this host the one that it reaches another one by.
    """
    found: dict[str, str] = {}
    here = []
    for host in hosts:
        if host.name not in facts:
            continue
        interface = facts[host.name].interfaces.get(host.interface)
        of_interface = [address for address in interface.addresses if "%" not in address] if interface else []
        found[host.name] = next(filter(None, (host.address, *of_interface, facts[host.name].reached_at)), host.name)
        if found[host.name] == host.name and not host.login:
            here.append(host.name)
    other = next((address for name, address in found.items() if name not in here), "")
    for name in here if other else ():
        found[name] = local_address_towards(other) or name
    return found


async def _listen(
    probes: dict[str, RemoteProbe], found: _Found, wanted: Wanted, addresses: Mapping[str, str]
) -> list[_Open]:
    opened: list[_Open] = []

    async def listen(probe: RemoteProbe) -> None:
        name, token = probe.host.name, secrets.token_hex(32)
        bind = _bound(addresses[name])
        ports = list(dict.fromkeys([*([wanted.port] if probe.host.coordinator else []), *wanted.ports]))
        answers = await probe.ask(ANSWER_S, do="listen", host=bind, ports=ports, token=token)
        for port, answer in zip(ports, read(list[dict[str, Any]], answers), strict=False):
            owner = read(str, answer.get("owner"))
            opened.append(
                _Open(Port(host=name, port=port, owner=owner), 0 if owner else read(int, answer.get("port")), token)
            )

    await _each(probes, found, listen)
    return opened


def _bound(address: str) -> str:
    """Return what to bind on a host of this address: empty for all it has, or the one of loopback."""
    return address if address.startswith(LOOPBACK) else ""


def _doors(ports: Iterable[_Open], addresses: Mapping[str, str]) -> list[tuple[str, str, int, str]]:
    return [(p.port.host, addresses[p.port.host], p.number, p.token) for p in ports if not p.port.owner]


def _as_asked(reaches: Iterable[Reach], ports: Iterable[_Open]) -> list[Reach]:
    """Return the same with the ports that were asked for: 0 in the place of the one that was free."""
    asked = {(entry.port.host, entry.number): entry.port.port for entry in ports}
    return [replace(reach, port=asked.get((reach.target, reach.port), reach.port)) for reach in reaches]


async def _knock(
    probes: dict[str, RemoteProbe], found: _Found, doors: Sequence[tuple[str, str, int, str]], also_own: bool = False
) -> list[Reach]:
    """Let every host knock at every other one's doors; a host alone at its own."""
    reaches: list[Reach] = []
    also_own = also_own or len(probes) == 1

    async def knock(probe: RemoteProbe) -> None:
        name = probe.host.name
        at = [door for door in doors if also_own or door[0] != name]
        if at:
            timeout = ANSWER_S + KNOCK_S * len(at)
            answer = await probe.ask(timeout, do="knock", source=name, at=at, patience=KNOCK_S)
            reaches.extend(read(list[Reach], answer))

    await _each(probes, found, knock)
    return reaches


async def _measure(
    probes: dict[str, RemoteProbe], found: _Found, reaches: Sequence[Reach], addresses: Mapping[str, str]
) -> int:
    """Measure all pairs, round by round, at a port that can be reached; return how many were left out."""
    order = list(probes)
    plan = rounds(order, MAX_ROUNDS) if order else []
    reached = {(reach.source, reach.target): reach.port for reach in reaches if not reach.problem}

    async def pair(one: str, other: str) -> None:
        for encrypted in (False, True):
            if encrypted and not (found.facts[one].encrypts and found.facts[other].encrypts):
                continue
            for source, target in dict.fromkeys(((one, other), (other, one))):
                if (source, target) not in reached:
                    continue
                rate = Rate(source=source, target=target, encrypted=encrypted)
                try:
                    port = reached[source, target]
                    speed = await _rate(probes[source], probes[target], addresses[target], port, encrypted)
                    found.rates.append(replace(rate, nbytes_per_s=speed))
                except (ProbeError, ProtocolError) as error:
                    found.rates.append(replace(rate, problem=str(error)))
                    return  # the rest would take as long, and say the same

    for pairs in plan:
        async with asyncio.TaskGroup() as group:
            for one, other in pairs:
                group.create_task(pair(one, other))
    return max(0, len(order) * (len(order) - 1) // 2 - sum(map(len, plan)))


async def _rate(source: RemoteProbe, target: RemoteProbe, address: str, port: int, encrypted: bool) -> float:
    token, host = secrets.token_hex(32), f"[{address}]" if ":" in address else address
    bind = host if _bound(address) else "*"
    try:
        answer = await target.ask(ANSWER_S, do="receive", host=bind, port=port, token=token, encrypted=encrypted)
        opened = read(dict[str, Any], answer)
        to = f"tcp://{host}:{read(int, opened.get('port'))}"
        rate = await source.ask(
            ANSWER_S + KNOCK_S, do="send", to=to, token=token, key=read(str, opened.get("key")), seconds=MEASURE_S,
            nbytes=MEASURE_NBYTES, patience=KNOCK_S,
        )  # fmt: skip
        return read(float, rate)
    finally:
        await target.ask(ANSWER_S, do="close")


CHECKS: tuple[Callable[[Findings], Iterator[Row]], ...] = (
    judge_versions,
    resources.judge,
    judge_code,
    network.judge,
    judge_wires,
    judge_bound,
    keyfiles.judge,
    running.judge,
)


def judge(findings: Findings) -> list[Row]:
    """Return the rows of all checks."""
    return [row for check in CHECKS for row in check(findings)]


def is_wrong(rows: Sequence[Row]) -> bool:
    """Whether a run would fail."""
    return any(row.verdict == Verdict.WRONG for row in rows)
