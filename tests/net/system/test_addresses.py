"""Addresses: names, interfaces and routes, with the system's answers faked; and what this host says itself."""

from __future__ import annotations

import socket
import threading
import time
from collections import namedtuple
from typing import Any

import psutil
import pytest

from tests.pace import allow, stretch
from tests.tables import for_each
from zmqps.errors import ConfigurationError, UnresolvedNameError
from zmqps.net.system import addresses
from zmqps.net.system.addresses import address_of_interface, interfaces, local_address_towards, parse_ports, resolve

Entry = namedtuple("Entry", "family address")
CARDS = {
    "lo": [Entry(socket.AF_INET, "127.0.0.1"), Entry(socket.AF_INET6, "::1")],
    "eth0": [Entry(socket.AF_INET6, "fe80::1%eth0"), Entry(socket.AF_INET6, "fd00::7"), Entry(17, "02:00:00:00:00:01")],
    "eth1": [Entry(socket.AF_INET6, "fd01::7"), Entry(socket.AF_INET, "10.1.0.7")],
    "wlan0": [],
}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: CARDS)


# --- names ---------------------------------------------------------------------------------------


def test_an_address_is_its_own_without_asking_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert resolve("10.0.0.1") == ["10.0.0.1"]
    assert resolve("fd00::1") == ["fd00::1"]


def test_a_name_stands_for_addresses_each_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(10, 1, 6, "", ("fd00::1", 0, 0, 0)), (2, 1, 6, "", ("10.0.0.1", 0)), (2, 1, 6, "", ("10.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert resolve("host-b") == ["fd00::1", "10.0.0.1"]


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_a_name_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(UnresolvedNameError, match=r"the name 'host-b' does not resolve on .*; check its spelling"):
        resolve("host-b")


def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(allow(60)) and [])
    begun = time.monotonic()
    with pytest.raises(UnresolvedNameError, match="no answer within 0 s"):
        resolve("host-b", timeout=0.05)
    over.set()
    assert time.monotonic() - begun < stretch(5)


def test_localhost_resolves_here() -> None:
    assert {"127.0.0.1", "::1"} & set(resolve("localhost"))


# --- the way to somebody -------------------------------------------------------------------------


def test_the_way_to_loopback_leaves_from_loopback() -> None:
    assert local_address_towards("tcp://127.0.0.1:5570") == "127.0.0.1"
    assert local_address_towards("tcp://127.0.0.2:0") == "127.0.0.1"
    assert local_address_towards("ipc://@somewhere") == "127.0.0.1"


@needs_ipv6
def test_the_way_to_ipv6s_loopback_leaves_from_there() -> None:
    assert local_address_towards("tcp://[::1]:5570") == "::1"


def test_where_no_way_leads_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(ConfigurationError, match=r"no way from .* to tcp://10.9.9.9:1 \(10.9.9.9: Network is unreach"):
        local_address_towards("tcp://10.9.9.9:1")


def test_an_address_without_a_way_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "resolve", lambda *_: ["fd00::99", "127.0.0.1"])
    connect = socket.socket.connect

    def over_ipv4(self: socket.socket, address: Any) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(101, "Network is unreachable")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", over_ipv4)
    assert local_address_towards("tcp://host-b:5570") == "127.0.0.1"


# --- interfaces ----------------------------------------------------------------------------------


def test_interfaces_have_their_addresses_ipv4_first(cards: None) -> None:
    assert interfaces() == {
        "lo": ["127.0.0.1", "::1"],
        "eth0": ["fe80::1%eth0", "fd00::7"],
        "eth1": ["10.1.0.7", "fd01::7"],
        "wlan0": [],
    }


def test_an_interface_gives_an_address_that_others_can_use(cards: None) -> None:
    assert address_of_interface("eth0") == "fd00::7"
    assert address_of_interface("eth1") == "10.1.0.7"
    assert address_of_interface("eth1", socket.AF_INET6) == "fd01::7"


def test_an_interface_that_is_not_there_is_answered_with_those_that_are(cards: None) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no interface 'eth9' on .*; there are eth0 \(fe80::1%eth0, fd00::7\)"
    ):
        address_of_interface("eth9")
    with pytest.raises(ConfigurationError, match="the interface 'eth0' has no IPv4 address"):
        address_of_interface("eth0", socket.AF_INET)
    with pytest.raises(ConfigurationError, match="the interface 'wlan0' has no address"):
        address_of_interface("wlan0")


def test_this_host_has_a_loopback_interface() -> None:
    assert any("127.0.0.1" in found for found in interfaces().values())


# --- ports ---------------------------------------------------------------------------------------


def test_ports_are_one_or_a_range() -> None:
    assert parse_ports("5571") == range(5571, 5572)
    assert parse_ports(" 5571-5580 ") == range(5571, 5581)
    assert parse_ports("5571 - 5571") == range(5571, 5572)


@for_each("text", ["", "-", "5571-", "-5571", "a-b", "0", "0-5", "5580-5571", "1-65536", "1-2-3", "1-65535", "\u0665"])
def test_other_ports_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"ports=.*write"):
        parse_ports(text)
