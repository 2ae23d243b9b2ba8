"""Hostfiles, lists of hosts, and who runs where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.launch.hosts import Host, read_hostfile, read_hosts, spread

FILE = """
# Open MPI's and DeepSpeed's
host-a slots=4
me@host-b servers=1 workers=4 interface=eth1   # two networks
fd00::7 slots = 2 port=2222 max_slots=4
[fd00::8] coordinator address=10.0.0.8 python=/opt/bin/python
"""


def test_a_hostfile_is_read_with_its_comments_users_ports_and_interfaces() -> None:
    assert read_hostfile(FILE) == [
        Host(name="host-a", slots=4),
        Host(name="host-b", user="me", servers=1, workers=4, interface="eth1"),
        Host(name="fd00::7", slots=2, port=2222),
        Host(name="fd00::8", coordinator=True, address="10.0.0.8", python="/opt/bin/python"),
    ]


@for_each(
    "text, hosts",
    [
        ("a:4,b:2", [Host(name="a", slots=4), Host(name="b", slots=2)]),
        ("me@a, b ", [Host(name="a", user="me"), Host(name="b")]),
        ("[fd00::7]:3,me@[::1]", [Host(name="fd00::7", slots=3), Host(name="::1", user="me")]),
        ("a,a,b:2", [Host(name="a", slots=2), Host(name="b", slots=2)]),
    ],
)
def test_a_list_of_hosts_is_read(text: str, hosts: list[Host]) -> None:
    assert read_hosts(text) == hosts


@for_each(
    "text, says",
    [
        ("", "names no host"),
        ("a slots=x", "'slots=x'; slots is a whole number"),
        ("a slots=-1", "slots is a whole number"),
        ("a workerz=2", "did you mean 'workers'"),
        ("a slots=1 slots=2", "is given twice"),
        ("-oProxyCommand=x", "is not a host"),
        ("me@-oProxyCommand=x", "is not a host"),
        ("@a", "is not a host"),
        ("a$(x)", "is not a host"),
        ("a interface=", "write interface=…"),
        ("a interface=-x", "write interface=…"),
        ("a port=0", "port is a whole number from 1"),
        ("a coordinator\nb coordinator", "there is one coordinator"),
        ("a servers=1\na servers=2", "is given twice and differently"),
        ("a coordinator=maybe", "write coordinator"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=r"hosts\.txt") as caught:
        read_hostfile(text, "hosts.txt")
    assert says in str(caught.value)


@for_each("text", ["", ",", "a:b", "a:1:2", "::1", "a:-1"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="-H"):
        read_hosts(text)


PLANS = [
    # hosts, servers, workers -> of each host: servers, workers
    ("a:4,b:4", 2, 4, [(1, 2), (1, 2)]),
    ("a:4,b:4", 2, None, [(1, 4), (1, 4)]),
    ("a,b,c", None, None, [(1, 1), (0, 1), (0, 1)]),
    ("a:2,b:2,c", 2, 4, [(1, 2), (1, 1), (0, 1)]),  # all have a worker, so servers stand beside them
    ("a:2,b:2,c:0", 2, None, [(0, 2), (0, 2), (2, 0)]),  # c is free of workers
    ("a:1,b:3", 1, 4, [(1, 1), (0, 3)]),
    ("a:1,b:3", 3, 2, [(2, 1), (1, 1)]),
    ("a servers=2\nb slots=4", None, None, [(2, 0), (0, 4)]),
    ("a servers=1 workers=1\nb workers=3", None, None, [(1, 1), (0, 3)]),
    ("a servers=1 workers=1\nb slots=3", 2, 3, [(1, 1), (1, 2)]),
    ("a slots=4\nb servers=0", 2, None, [(2, 4), (0, 1)]),
]


@for_each("hosts, servers, workers, plan", PLANS)
def test_roles_are_spread(hosts: str, servers: int | None, workers: int | None, plan: list[tuple[int, int]]) -> None:
    places = spread(read_hostfile(hosts) if " " in hosts else read_hosts(hosts), servers, workers)
    assert [(len(place.servers), len(place.workers)) for place in places] == plan


def test_the_coordinator_goes_where_it_is_asked_for_or_to_the_first_host() -> None:
    assert [place.coordinator for place in spread(read_hosts("a,b"), 1, 2)] == [True, False]
    places = spread(read_hostfile("a workers=2\nb coordinator servers=1 workers=0"), None, None)
    assert [place.coordinator for place in places] == [False, True]
    assert all(place.is_used for place in places)


@for_each(
    "hosts, servers, workers, says",
    [
        ("a:2,b:2", 1, 5, "5 workers do not fit: the hosts have room for 4; raise slots="),
        ("a servers=2 workers=1", 1, None, "--servers 1 does not fit servers=2 of the hosts"),
        ("a servers=1 workers=1", 2, None, "--servers 2 does not fit servers=1"),
        ("a servers=2", None, None, "no room for a worker"),
        ("a servers=0 slots=1", None, None, "there is no server"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(hosts: str, servers: int | None, workers: int | None, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        spread(read_hostfile(hosts) if " " in hosts else read_hosts(hosts), servers, workers)
    assert says in str(caught.value)


NUMBER = st.none() | st.integers(0, 6)
HOSTS = st.lists(
    st.builds(Host, name=st.just("x"), slots=NUMBER, servers=NUMBER, workers=NUMBER), min_size=1, max_size=6
)


@given(HOSTS, st.none() | st.integers(1, 8), st.none() | st.integers(1, 8))
def test_every_plan_has_all_numbers_once_and_what_the_hosts_say(
    hosts: list[Host], servers: int | None, workers: int | None
) -> None:
    try:
        places = spread(hosts, servers, workers)
    except ConfigurationError:
        return
    all_servers = [index for place in places for index in place.servers]
    all_workers = [index for place in places for index in place.workers]
    assert all_servers == list(range(len(all_servers)))
    assert all_workers == list(range(len(all_workers)))
    assert servers in (None, len(all_servers))
    assert workers in (None, len(all_workers))
    assert sum(place.coordinator for place in places) == 1
    for host, place in zip(hosts, places, strict=True):
        assert host.servers in (None, len(place.servers))
        assert host.workers in (None, len(place.workers))
        assert len(place.workers) <= host.most


@given(st.text(max_size=80))
def test_any_text_is_hosts_or_an_error(text: str) -> None:
    for read in (read_hostfile, read_hosts):
        try:
            hosts = read(text)
        except ConfigurationError:
            continue
        assert hosts
        assert not any(host.destination.startswith("-") for host in hosts)
