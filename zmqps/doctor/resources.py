"""Whether each host has what a run takes: processors, memory, descriptors, a clock, GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from zmqps.doctor.facts import Findings, Host, HostFacts
from zmqps.doctor.rows import Row, good, warning, wrong
from zmqps.errors import counted, host_advice, num_bytes, seconds

#: More than this share of the processors busy already, and a run is slowed down.
BUSY = 0.5
#: A worker takes so much of /dev/shm for each server on its host (docs/lane.md).
LANE_NBYTES = 40 << 20
#: What containers have unless told otherwise is less than this: room for two workers of one server, and more.
SMALL_SHM_NBYTES = 96 << 20
#: A server keeps values, and with Adam two slots of the same size; a worker its parameters and gradients.
SERVER_COPIES, WORKER_COPIES = 3, 2
#: A process of zmqps with its libraries.
PROCESS_NBYTES = 150 << 20
#: Less memory than this and nothing runs well.
LITTLE_NBYTES = 512 << 20
#: Descriptors: below this a server gives up its fast endpoint, and what each member takes of them besides a base.
FEW_FILES, FILES_A_MEMBER, FILES_BASE = 512, 4, 64
#: Lines of logs from several hosts are merged by their clocks.
CLOCK_WARNING_S = 1.0


def judge(findings: Findings) -> Iterator[Row]:
    """Yield the rows of each host that answers, and one for each that does not."""
    for host in findings.hosts:
        if host.name in findings.problems:
            yield _problem(host, findings.problems[host.name])
        if facts := findings.facts.get(host.name):
            yield _cores(host, facts)
            yield _memory(host, facts, findings)
            yield _shared_memory(host, facts)
            yield _open_files(host, facts, findings)
            yield from _interface(host, facts)
            yield from _clock(host, findings)
            yield _gpus(host, facts)


def _problem(host: Host, problem: str) -> Row:
    if not host.login:
        return wrong(host.name, "probe", problem, "run zmqps doctor without --hosts to look at this host alone")
    return wrong(host.name, "ssh", problem, host_advice(problem, host.login))


def _cores(host: Host, facts: HostFacts) -> Row:
    processes = host.servers + host.workers
    found = f"{counted(facts.cores, 'core')}, {facts.load:.1f} busy"
    if processes > facts.cores:
        nodes = f"{counted(host.servers, 'server')} and {counted(host.workers, 'worker')}"
        return warning(host.name, "cores", f"{found}, for {nodes}", "run fewer there, or on more hosts")
    if facts.load > BUSY * facts.cores:
        return warning(host.name, "cores", found, "end what else runs there: the slowest host sets the pace")
    return good(host.name, "cores", found)


def needed_nbytes(host: Host, findings: Findings) -> int:
    """Return the memory that the nodes of a host take to train the model."""
    model = findings.model.nbytes if findings.model else 0
    servers = sum(entry.servers for entry in findings.hosts)
    shards = SERVER_COPIES * model * host.servers // max(1, servers)
    return shards + WORKER_COPIES * model * host.workers + PROCESS_NBYTES * (host.servers + host.workers)


def _memory(host: Host, facts: HostFacts, findings: Findings) -> Row:
    found = f"{num_bytes(facts.available_nbytes)} of {num_bytes(facts.memory_nbytes)} free"
    needed = needed_nbytes(host, findings) if findings.model else 0
    if needed > facts.memory_nbytes:
        return wrong(
            host.name, "memory", f"{found}, {num_bytes(needed)} needed", "run fewer nodes there, or on more hosts"
        )
    if needed > facts.available_nbytes:
        return warning(
            host.name, "memory", f"{found}, {num_bytes(needed)} needed", "end what else uses the memory there"
        )
    if facts.available_nbytes < LITTLE_NBYTES:
        return warning(host.name, "memory", found, "end what else uses the memory there")
    return good(host.name, "memory", found)


def _shared_memory(host: Host, facts: HostFacts) -> Row:
    if not facts.shm_nbytes:
        advice = "nothing to do, but workers and servers of one host are slower without"
        return warning(host.name, "/dev/shm", "there is none", advice)
    found = f"{num_bytes(facts.shm_free_nbytes)} of {num_bytes(facts.shm_nbytes)} free"
    needed = LANE_NBYTES * host.servers * host.workers
    if facts.shm_free_nbytes < max(needed, SMALL_SHM_NBYTES):
        text = f"{found}, {num_bytes(needed)} needed" if needed else found
        advice = "give the container more (docker run --shm-size=1g): what finds no room there goes through sockets"
        return warning(host.name, "/dev/shm", text, advice)
    return good(host.name, "/dev/shm", found)


def _open_files(host: Host, facts: HostFacts, findings: Findings) -> Row:
    members = sum(entry.servers + entry.workers for entry in findings.hosts)
    needed = FILES_BASE + FILES_A_MEMBER * members
    found = f"{facts.open_files} at most"
    if 0 < facts.open_files < needed:
        text = f"{found}, {needed} needed for {counted(members, 'node')}"
        return wrong(host.name, "open files", text, "raise the limit with ulimit -n, or in /etc/security/limits.conf")
    if 0 < facts.open_files < FEW_FILES:
        return warning(host.name, "open files", found, "raise the limit with ulimit -n 4096")
    return good(host.name, "open files", found if facts.open_files > 0 else "no limit")


def _interface(host: Host, facts: HostFacts) -> Iterator[Row]:
    if not host.interface:
        return
    found = facts.interfaces.get(host.interface)
    if found is None or not found.addresses:
        names = ", ".join(name for name, entry in facts.interfaces.items() if entry.addresses)
        text = f"no {host.interface} with an address"
        yield wrong(host.name, "interface", text, f"name another one with interface=; there are {names}")
    elif not found.up:
        yield wrong(host.name, "interface", f"{host.interface} is down", f"ip link set {host.interface} up")
    else:
        yield good(host.name, "interface", f"{host.interface}, {found.addresses[0]}")


def _clock(host: Host, findings: Findings) -> Iterator[Row]:
    clock = findings.clocks.get(host.name)
    if clock is None or not host.login:  # this host's own
        return
    way = "ahead" if clock.ahead_s > 0 else "behind"
    found = f"{seconds(abs(clock.ahead_s))} {way} (± {seconds(clock.error_s)})"
    if abs(clock.ahead_s) - clock.error_s > CLOCK_WARNING_S:
        advice = "keep the clocks together with chrony or systemd-timesyncd: logs are merged by time"
        yield warning(host.name, "clock", found, advice)
    else:
        yield good(host.name, "clock", found)


def _gpus(host: Host, facts: HostFacts) -> Row:
    if facts.gpu_problem:
        found = f"{counted(len(facts.gpus), 'GPU')}, not usable"
        return warning(host.name, "GPUs", found, facts.gpu_problem)
    return good(host.name, "GPUs", ", ".join(facts.gpus) or "none")
