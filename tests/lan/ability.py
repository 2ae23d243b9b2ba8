"""What this machine can do for a LAN of namespaces, tried once: tests that need more are skipped with the reason."""

from __future__ import annotations

import functools
import os
import shutil

from tests.lan.namespaces import LanError, Namespaces

#: What each ability needs: programs, and a script that works in a network of its own with the pair d0, d1 in it.
NEEDS = {
    "hosts": ("ip nsenter unshare mount", "ip link add sw0 type bridge forward_delay 0 && ip link set d0 master sw0"),
    "ssh": ("ssh sshd ssh-keygen", "true"),
    "limit": ("tc", "tc qdisc add dev d0 root tbf rate 10mbit burst 64k latency 50ms"),
    "block": (
        "iptables ip6tables",
        "iptables -A INPUT -p tcp --dport 1 -j REJECT --reject-with tcp-reset && ip6tables -A INPUT -p tcp -j DROP",
    ),
    "capture": ("tcpdump", "true"),
    "ipv6": ("", "ip address add fd77::1/64 dev d0 nodad"),
}


@functools.cache
def missing(ability: str) -> str:
    """Return why this machine lacks an ability, or an empty text."""
    programs, script = NEEDS[ability]
    if os.name != "posix" or not hasattr(os, "pidfd_open") or os.geteuid():
        return "making network namespaces needs root, on Linux"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if absent := [name for name in programs.split() if not shutil.which(name, path=path)]:
        return f"not installed: {', '.join(absent)}"
    if ability != "hosts" and (reason := missing("hosts")):
        return reason
    try:
        namespaces = Namespaces(["--net", "--uts", "--ipc"], seconds=30)
    except (OSError, LanError) as error:
        return str(error)
    try:
        namespaces.call(["sh", "-c", f"ip link add d0 type veth peer name d1 && {script}"])
    except (OSError, LanError) as error:
        return f"the kernel lacks {ability}: {error}"
    finally:
        namespaces.end()
    return ""
