"""Where a node listens and what it tells others: all that can be said, and what follows from it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

import pytest

from tests.tables import for_each
from zmqps.errors import AddressInUseError, ConfigurationError, UnresolvedNameError
from zmqps.nodes import listening
from zmqps.nodes.listening import Place, other_addresses, resolved

COORDINATOR = "tcp://10.0.0.1:5570"
CARDS = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.2", "fd00::2"], "eth1": ["10.1.0.2"]}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the host 10.0.0.2 with a second network."""

    def towards(endpoint: str) -> str:
        if "127.0.0.1" in endpoint:
            return "127.0.0.1"
        return "fd00::2" if "[" in endpoint else "10.0.0.2"

    def of_interface(name: str, family: int = 0) -> str:
        found = [a for a in CARDS[name] if not family or (":" in a) == (family == socket.AF_INET6)]
        return found[0]

    monkeypatch.setattr(listening, "local_address_towards", towards)
    monkeypatch.setattr(listening, "address_of_interface", of_interface)
    monkeypatch.setattr(listening, "interfaces", lambda: CARDS)
    monkeypatch.setattr(listening, "outward_address", lambda: "10.0.0.2")
    monkeypatch.setattr(listening, "usable_addresses", lambda: ["10.0.0.2", "10.1.0.2", "fd00::2"])


def both(place: Place, towards: str = COORDINATOR) -> tuple[str, str]:
    """Return what a node binds and what it advertises, if it gets port 7777."""
    place.check()
    bound = place.binds(0, towards)
    return bound, place.advertises(bound.replace(":0", ":7777") if bound.endswith(":0") else bound, towards)


@for_each(
    "place, bound, advertised",
    [
        (Place(), "tcp://10.0.0.2:0", "tcp://10.0.0.2:7777"),
        (Place("tcp://10.1.0.2:5571"), "tcp://10.1.0.2:5571", "tcp://10.1.0.2:5571"),
        (Place("tcp://0.0.0.0:5571"), "tcp://0.0.0.0:5571", "tcp://10.0.0.2:5571"),
        (Place("tcp://*:5571"), "tcp://*:5571", "tcp://10.0.0.2:5571"),
        (Place("tcp://[::]:5571"), "tcp://[::]:5571", "tcp://10.0.0.2:5571"),
        (Place("tcp://127.0.0.1:5571"), "tcp://127.0.0.1:5571", "tcp://127.0.0.1:5571"),
        (Place("ipc:///tmp/x"), "ipc:///tmp/x", "ipc:///tmp/x"),
        (Place(interface="eth1"), "tcp://10.1.0.2:0", "tcp://10.1.0.2:7777"),
        (Place("tcp://0.0.0.0:5571", interface="eth1"), "tcp://0.0.0.0:5571", "tcp://10.1.0.2:5571"),
        (Place(advertise="10.1.0.2"), "tcp://10.1.0.2:0", "tcp://10.1.0.2:7777"),
        (Place(advertise="node-b"), "tcp://0.0.0.0:0", "tcp://node-b:7777"),
        (Place(advertise="nat.example:15571"), "tcp://0.0.0.0:0", "tcp://nat.example:15571"),
        (Place(advertise="2001:db8::7"), "tcp://[::]:0", "tcp://[2001:db8::7]:7777"),
        (Place(advertise="[2001:db8::7]:15571"), "tcp://[::]:0", "tcp://[2001:db8::7]:15571"),
        (Place("tcp://0.0.0.0:5571", "node-b"), "tcp://0.0.0.0:5571", "tcp://node-b:5571"),
    ],
)
def test_what_a_node_binds_and_advertises(place: Place, bound: str, advertised: str) -> None:
    assert both(place) == (bound, advertised)


def test_on_one_host_all_stays_on_loopback() -> None:
    assert both(Place(), "tcp://127.0.0.1:5570") == ("tcp://127.0.0.1:0", "tcp://127.0.0.1:7777")
    assert Place().binds(5570) == "tcp://127.0.0.1:5570"
    assert Place().advertises("tcp://127.0.0.1:5570") == "tcp://127.0.0.1:5570"


def test_over_ipv6_the_address_of_an_interface_is_one_of_it() -> None:
    coordinator = "tcp://[fd00::1]:5570"
    assert both(Place(), coordinator) == ("tcp://[fd00::2]:0", "tcp://[fd00::2]:7777")
    assert both(Place(interface="eth0"), coordinator) == ("tcp://[fd00::2]:0", "tcp://[fd00::2]:7777")
    assert both(Place(interface="eth1"), coordinator)[0] == "tcp://10.1.0.2:0"  # it has no other
    assert both(Place("tcp://[::]:1"), coordinator)[1] == "tcp://[fd00::2]:1"
    with pytest.raises(ConfigurationError, match=r"takes IPv4 only, .* bind tcp://\[::\]:1, or say with --advertise"):
        both(Place("tcp://0.0.0.0:1"), coordinator)


def test_a_coordinator_on_all_addresses_tells_one_that_can_be_used_and_the_others() -> None:
    assert Place("tcp://0.0.0.0:5570").advertises("tcp://0.0.0.0:5570") == "tcp://10.0.0.2:5570"
    assert other_addresses("tcp://0.0.0.0:5570", "tcp://10.0.0.2:5570") == ["10.1.0.2"]
    assert other_addresses("tcp://[::]:5570", "tcp://10.0.0.2:5570") == ["10.1.0.2", "fd00::2"]
    assert other_addresses("tcp://10.0.0.2:5570", "tcp://10.0.0.2:5570") == []
    assert other_addresses("ipc:///tmp/x", "ipc:///tmp/x") == []


@for_each(
    "place",
    [
        *(Place(advertise=text) for text in ("0.0.0.0", "*", "::", "host:0", "host:x", "a b", "tcp://", "http://host")),
        *(Place("tcp://10.0.0.2:5571", interface="eth1"), Place("tcp://10.0.0.2:5571", ports="5571-5580")),
        *(Place(ports="80-70"), Place("tcp://host")),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_bound(place: Place) -> None:
    with pytest.raises(ConfigurationError):
        place.check()


# --- ports ---------------------------------------------------------------------------------------


def taken(*ports: int) -> list[str]:
    return [f":{port}" for port in ports]


def binding(*busy: int) -> tuple[list[str], object]:
    tried: list[str] = []

    def bind(endpoint: str) -> str:
        tried.append(endpoint)
        if endpoint.endswith(tuple(taken(*busy))):
            raise AddressInUseError(endpoint=endpoint, port=int(endpoint[-4:]), owner="python (pid 1)")
        return endpoint

    return tried, bind


def test_the_first_free_port_of_a_range_is_taken() -> None:
    tried, bind = binding(5571, 5572)
    assert Place(ports="5571-5575").bind(bind, "tcp://10.0.0.2:0") == "tcp://10.0.0.2:5573"  # type: ignore[arg-type]
    assert len(tried) == 3


def test_a_range_without_a_free_port_is_named_with_who_has_them() -> None:
    _, bind = binding(5571, 5572)
    with pytest.raises(ConfigurationError, match=r"all ports of 5571-5572 are in use on 10.0.0.2: 5571 by python"):
        Place(ports="5571-5572").bind(bind, "tcp://10.0.0.2:0")  # type: ignore[arg-type]
    with pytest.raises(AddressInUseError, match="port 5571 is in use by python"):
        Place(ports="5571").bind(bind, "tcp://10.0.0.2:0")  # type: ignore[arg-type]


# --- names that resolve later --------------------------------------------------------------------


def test_a_name_that_resolves_later_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "AGAIN_S", 0.0)
    answers = iter([None, None, "10.0.0.2"])

    def find() -> str:
        answer = next(answers)
        if answer is None:
            raise UnresolvedNameError(name="head", host="here", why="not known")
        return answer

    assert asyncio.run(resolved(find, None, logging.getLogger("test"))) == "10.0.0.2"
    assert caplog.text.count("the name 'head' does not resolve on here (not known)") == 1


def test_nobody_waits_for_a_name_once_the_parent_process_is_gone() -> None:
    reader, writer = os.pipe()
    os.close(writer)

    def find() -> str:
        raise UnresolvedNameError(name="head", host="here", why="not known")

    try:
        assert asyncio.run(resolved(find, reader, logging.getLogger("test"))) is None
    finally:
        os.close(reader)
