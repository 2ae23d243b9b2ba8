"""Who holds a port."""

from __future__ import annotations

import os
import socket

from zmqps.net.system.addresses import owner_of


def test_the_owner_of_a_listening_port_is_named_by_pid() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        if family == socket.AF_INET6 and not socket.has_ipv6:
            continue
        with socket.socket(family) as listener:
            listener.bind((address, 0))
            listener.listen()
            assert owner_of(listener.getsockname()[1]).endswith(f"(pid {os.getpid()})")


def test_a_port_that_nobody_listens_on_has_no_known_owner() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # held, but not listening
        assert owner_of(bound.getsockname()[1]) == "another process"
