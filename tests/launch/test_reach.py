"""By which address a host is reached."""

from __future__ import annotations

import pytest

from tests.tables import for_each
from zmqps.core.protocol.endpoints import is_loopback
from zmqps.errors import ConfigurationError
from zmqps.launch.reach import own_address, route_towards, undecided

BY_SSH = {"SSH_CONNECTION": "10.0.0.1 40312 10.0.0.7 22"}


@for_each(
    "address, interface, is_local, found",
    [
        ("127.0.0.9", "", False, "127.0.0.9"),
        ("", "lo", False, "127.0.0.1"),
        ("", "", False, "10.0.0.7"),  # where ssh came in
        ("", "", True, ""),  # only the way to the others can tell
    ],
)
def test_the_address_is_what_the_user_says_or_where_ssh_came_in(
    address: str, interface: str, is_local: bool, found: str
) -> None:
    assert own_address(address, interface, "nowhere", is_local=is_local, environment=BY_SSH) == found


def test_a_shell_that_does_not_say_how_it_came_in_leaves_the_name() -> None:
    assert own_address("", "", "localhost", is_local=False, environment={}) in ("127.0.0.1", "::1")
    with pytest.raises(ConfigurationError, match="write address= or interface="):
        own_address("", "", "no.such.host.invalid", is_local=False, environment={})


@for_each(
    "addresses, names, towards",
    [
        ({"here": "", "b": "10.0.0.7"}, ["here"], "10.0.0.7"),
        ({"a": "127.0.1.1", "b": "10.0.0.7"}, ["a"], "10.0.0.7"),  # the launcher's host by its name, on Debian
        ({"a": "127.0.0.11", "b": "127.0.0.12"}, [], "127.0.0.11"),  # hosts of this one
        ({"here": "", "b": "127.0.0.12"}, ["here"], "127.0.0.12"),
        ({"here": ""}, ["here"], ""),
    ],
)
def test_the_way_to_others_decides_where_an_address_means_nothing_to_them(
    addresses: dict[str, str], names: list[str], towards: str
) -> None:
    assert undecided(addresses) == (names, towards)


def test_the_way_to_another_host_tells_the_address() -> None:
    assert route_towards("127.0.0.5") == "127.0.0.1"


def test_loopback_is_known() -> None:
    assert is_loopback("127.0.0.77")
    assert is_loopback("::1")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("fe80::1%eth0")
    assert not is_loopback("name")
