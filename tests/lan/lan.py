"""A LAN of network namespaces on this machine: hosts joined by a bridge, and what can happen to their wires.

::

    with Lan(4) as lan:
        print(lan.hosts[0].run(["ssh", "host-b", "hostname"]))
        lan.cut(lan.hosts[1])

Each host has its own network, processes, host name, shared memory, ``/tmp``, home directory and sshd. Nothing of
it can be seen from this machine's own network, and nothing can be reached from it. All hosts end with this process,
however that ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import bench.delay
from tests.lan.host import Host
from tests.lan.namespaces import PATIENCE, LanError, Namespaces

#: Where hosts have their files; a name has the process that made it, so that others can tell leftovers.
PLACE, PREFIX = Path("/var/tmp"), "zmqps-lan-"
MAX_HOSTS, MAX_SECONDS = 16, 1800
#: Whole frames, written at once, as root.
TCPDUMP = ("-s", "0", "-B", "65536", "-U", "--immediate-mode", "-Z", "root")
WIRE, OFFLOADS = Path(bench.delay.__file__), Path(__file__).with_name("offloads.py")


class Lan:
    """Hosts ``host-a``, ``host-b``, … on a network of their own, until the end of the ``with`` block.

    Parameters
    ----------
    size
        How many hosts, 16 at most.
    nics
        How many network interfaces each has, or those of each. The first ones, ``eth0``, are on 10.77.1.0/24 and
        fd77:1::/64, the second ones, ``eth1``, on 10.77.2.0/24 and fd77:2::/64: networks apart from each other.
    ssh
        Whether each has an sshd, and may log in to all others.
    shared_home
        Whether all hosts have one home directory, as over NFS.
    debian_names
        Whether each resolves its own name to 127.0.1.1, as Debian installs it.
    seconds
        The longest that it may last.
    """

    def __init__(
        self,
        size: int = 4,
        *,
        nics: int | Sequence[int] = 1,
        ssh: bool = True,
        shared_home: bool = False,
        debian_names: bool = False,
        seconds: int = 600,
    ) -> None:
        if not 1 <= size <= MAX_HOSTS or not 1 <= seconds <= MAX_SECONDS:
            raise ValueError(f"1 to {MAX_HOSTS} hosts, and at most {MAX_SECONDS} s")
        self._nics = [nics] * size if isinstance(nics, int) else list(nics)
        self._ssh, self._shared_home, self._debian_names, self._seconds = ssh, shared_home, debian_names, seconds
        self.names = [f"host-{letter}" for letter in string.ascii_lowercase[:size]]
        self.hosts: list[Host] = []
        self._links: dict[str, subprocess.Popen[str]] = {}
        self._cut: set[str] = set()

    # --- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        remove_leftovers()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=PLACE))
        self._namespaces: Namespaces | None = None
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts and everything on them, and remove their files."""
        with contextlib.ExitStack() as stack:  # each of these, whatever becomes of the others
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            for link in self._links.values():
                stack.callback(link.communicate, timeout=PATIENCE)
            for host in self.hosts:
                stack.callback(host.end)
            if self._namespaces is not None:
                stack.callback(self._namespaces.end)  # all hosts are inside

    def _build(self) -> None:
        self._namespaces = wires = Namespaces(["--net"], seconds=self._seconds)
        quiet = (
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6"
        )
        wires.call(["sh", "-c", quiet])  # the switch itself says nothing
        for number in range(max(self._nics)):
            bridge = "type bridge forward_delay 0 mcast_snooping 0"
            wires.ip(f"link add sw{number} {bridge}", f"link set sw{number} up")
        home = self.directory / "home" if self._shared_home else None
        for index, (name, nics) in enumerate(zip(self.names, self._nics, strict=True)):
            directory = self.directory / name
            directory.mkdir()
            host = Host(name, directory, wires, home, self._seconds)
            self.hosts.append(host)
            for number in range(nics):
                host.ipv4[f"eth{number}"] = f"10.77.{number + 1}.{index + 1}"
                host.ipv6[f"eth{number}"] = f"fd77:{number + 1}::{index + 1}"
        if self._ssh:
            self._make_keys()
        for host in self.hosts:
            host.furnish(self._hosts_file(host))
            self._wire(host)
            if self._ssh:
                host.serve_ssh(self.key, self.directory / "known_hosts", self.ssh_config)

    def _hosts_file(self, host: Host) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        for other in self.hosts:
            own = other is host and self._debian_names
            lines += [f"{'127.0.1.1' if own else other.address} {other.name}", f"{other.address6} {other.name}-v6"]
            lines += [f"{address} {other.name}-{nic}" for nic, address in other.ipv4.items() if nic != "eth0"]
        return "\n".join(lines) + "\n"

    def _wire(self, host: Host) -> None:
        wires, place = self.wires, host.namespaces.pid
        lines = ["link set lo up"]
        for nic, address in host.ipv4.items():
            port = port_of(host, nic)
            wires.ip(
                f"link add {port} type veth peer name {nic} netns {place}",
                f"link set {port} master sw{nic[3:]}",
                f"link set {port} up",
            )
            lines += [
                f"address add {address}/24 dev {nic}",
                f"address add {host.ipv6[nic]}/64 dev {nic} nodad",
                f"link set {nic} up",
            ]
        host.namespaces.ip(*lines)

    def _make_keys(self) -> None:
        """Make a key for each host and one to log in with, and the client's configuration; all end with the LAN."""
        self.key = self.directory / "id_ed25519"
        self.ssh_config = self.directory / "ssh_config"
        known = []
        for name in [*self.names, None]:
            path = self.directory / name / "host_key" if name else self.key
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lan", "-f", path], check=True)
            if name:
                host = self.host(name)
                places = [name, f"{name}-v6", *host.ipv4.values(), *host.ipv6.values()]
                places += [f"{name}-{nic}" for nic in host.ipv4]
                known.append(f"{','.join(places)} {Path(f'{path}.pub').read_text().strip()}")
        (self.directory / "known_hosts").write_text("\n".join(known) + "\n")
        self.ssh_config.write_text("Host *\n  BatchMode yes\n  ConnectTimeout 10\n  UpdateHostKeys no\n")

    # --- looking --------------------------------------------------------------------------------

    @property
    def wires(self) -> Namespaces:
        """Where the bridges are."""
        assert self._namespaces is not None, "with Lan() as lan:"
        return self._namespaces

    def host(self, name: str) -> Host:
        """Return the host of a name."""
        return next(host for host in self.hosts if host.name == name)

    @contextlib.contextmanager
    def capture(self, host: Host, path: Path, *, interface: str = "eth0") -> Iterator[Path]:
        """Record all frames that a host sends and receives meanwhile into a file that ``tcpdump`` reads."""
        recorder = host.popen(["tcpdump", "-i", interface, *TCPDUMP, "-w", path])
        recorder.said("listening on")
        try:
            yield path
        finally:
            recorder.send_signal(2)
            recorder.finish()

    # --- what can happen to a wire --------------------------------------------------------------

    def cut(self, host: Host, *, nic: str = "eth0", carrier: bool = False) -> None:
        """Let a host reach nobody: its frames vanish in the switch, or, with ``carrier``, the cable is pulled."""
        port = self._outer(host, nic)
        self.wires.ip(f"link set {port_of(host, nic)} down" if carrier else f"link set {port} nomaster")
        self._cut.add(port)

    def heal(self, host: Host, *, nic: str = "eth0") -> None:
        """Undo `cut`."""
        port = self._outer(host, nic)
        self.wires.ip(f"link set {port} master sw{nic[3:]}", f"link set {port_of(host, nic)} up")
        self._cut.discard(port)

    def power_off(self, host: Host) -> None:
        """Let a host vanish with all that runs on it; nobody hears a word of it."""
        for nic in host.ipv4:
            self.cut(host, nic=nic)
        host.end()

    def limit(self, host: Host, *, mbit: float | None, nic: str = "eth0") -> None:
        """Let a host's wire carry so many Mbit/s each way; None: what the kernel can."""
        command = "tc qdisc del dev {} root 2> /dev/null; true"
        if mbit is not None:  # large frames of segmentation offload have to fit into a burst
            burst = max(65536, int(mbit * 1e6 / 8 / 100))
            command = f"tc qdisc replace dev {{}} root tbf rate {round(mbit * 1000)}kbit burst {burst} latency 50ms"
        host.namespaces.call(["sh", "-c", command.format(nic)])
        self.wires.call(["sh", "-c", command.format(port_of(host, nic))])

    def delay(self, host: Host, *, ms: float, nic: str = "eth0") -> None:
        """Add so many milliseconds to every round trip over a host's wire, half of it each way."""
        self._control(host, nic, f"delay {ms / 2000}")

    def loss(self, host: Host, share: float, *, nic: str = "eth0") -> None:
        """Let so many of the frames on a host's wire vanish by chance, each way: 0.01 is one of a hundred."""
        self._control(host, nic, f"loss {share}")

    def block(self, host: Host, ports: str, *, source: Host | None = None, reject: bool = False) -> None:
        """Have a host's firewall drop, or ``reject``, what comes for TCP ports: ``5570`` or ``5571:5580``."""
        for tool, address in (("iptables", "ipv4"), ("ip6tables", "ipv6")):
            froms = [["-s", a] for a in getattr(source, address).values()] if source else [[]]
            for words in froms:
                target = ["-j", "REJECT", "--reject-with", "tcp-reset"] if reject else ["-j", "DROP"]
                host.namespaces.call([tool, "-w", "-A", "INPUT", "-p", "tcp", *words, "--dport", ports, *target])

    def admit(self, host: Host, *ports: str) -> None:
        """Have a host's firewall drop all new TCP connections from others but those to some ports."""
        for tool in ("iptables", "ip6tables"):
            host.namespaces.call([tool, "-w", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT"])
            for words in [*(["--dport", some, "-j", "ACCEPT"] for some in ports), ["-j", "DROP"]]:
                host.namespaces.call([tool, "-w", "-A", "INPUT", "-p", "tcp", "--syn", *words])

    def unblock(self, host: Host) -> None:
        """Undo every `block` and `admit` of a host."""
        for tool in ("iptables", "ip6tables"):
            host.namespaces.call([tool, "-w", "-F", "INPUT"])

    # --- the userspace link ---------------------------------------------------------------------

    def _outer(self, host: Host, nic: str) -> str:
        """Return the port of the switch at which a host's wire ends: that of its userspace link, if there is one."""
        port = port_of(host, nic)
        return f"m{port}" if port in self._links else port

    def _control(self, host: Host, nic: str, line: str) -> None:
        port = port_of(host, nic)
        if port not in self._links:
            self._insert_link(host, nic)
        link = self._links[port]
        assert link.stdin is not None
        assert link.stdout is not None
        link.stdin.write(f"{line}\n")
        link.stdin.flush()
        if link.stdout.readline() != "done\n":
            raise LanError(f"the link of {host.name} has not taken {line!r}")

    def _insert_link(self, host: Host, nic: str) -> None:
        """Put a program between a host and the switch that hands on each frame, or does not."""
        port = port_of(host, nic)
        was_cut = self._outer(host, nic) in self._cut
        wires = self.wires
        wires.ip(
            f"link set {port} nomaster",
            f"link add m{port} type veth peer name l{port}",
            f"link set m{port} up",
            f"link set l{port} up",
        )
        # Frames as they are on a wire: no longer than one, with their checksums in them.
        host.namespaces.call([sys.executable, "-I", "-S", str(OFFLOADS), nic], only="--net")
        wires.call([sys.executable, "-I", "-S", str(OFFLOADS), f"m{port}"], only="--net")
        link = subprocess.Popen(
            [*wires.enter(), sys.executable, "-I", "-S", str(WIRE), port, f"l{port}", "0", "told"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._links[port] = link
        if was_cut:
            self._cut.add(f"m{port}")
        else:
            wires.ip(f"link set m{port} master sw{nic[3:]}")


def port_of(host: Host, nic: str) -> str:
    """Return the switch's end of a host's wire."""
    return f"{host.name[5:]}-{nic}"


def remove_leftovers() -> None:
    """Remove the files of LANs whose process was killed; their namespaces have ended with it."""
    for path in PLACE.glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).split("-")[0]
        if not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)
