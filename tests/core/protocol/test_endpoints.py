"""Endpoints as text: what is one, and which hosts are loopback or all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.protocol.endpoints import (
    MAX_PORT,
    host_named,
    host_of,
    ip_of,
    is_loopback,
    is_of,
    is_wildcard,
    join,
    split,
)
from zmqps.errors import ConfigurationError


@for_each(
    "endpoint, host, port",
    [
        ("tcp://127.0.0.1:5570", "127.0.0.1", 5570),
        ("tcp://node-1.cluster_a.example:0", "node-1.cluster_a.example", 0),
        ("tcp://[fd00::1]:5570", "fd00::1", 5570),
        ("tcp://[fe80::1%eth0]:5570", "fe80::1%eth0", 5570),
        ("tcp://[::]:65535", "::", 65535),
        ("tcp://*:5570", "*", 5570),
    ],
)
def test_an_endpoint_is_taken_apart_and_put_together(endpoint: str, host: str, port: int) -> None:
    assert split(endpoint) == (host, port)
    assert join(host, port) == endpoint
    assert host_of(endpoint) == host


@for_each(
    "endpoint",
    [
        *(
            "",
            "tcp://",
            "tcp://:5570",
            "tcp://host",
            "tcp://host:",
            "tcp://host:x",
            "tcp://host:65536",
            "tcp://host:-1",
        ),
        *("tcp://host:5570/path", "tcp://me@host:5570", "tcp://a b:5570", "tcp://a;b:5570", "tcp://h:\u0665", "h:5570"),
        *(
            "tcp://[::1]",
            "tcp://[::1]5570",
            "tcp://[host]:5570",
            "tcp://[127.0.0.1]:5570",
            "tcp://[::1:5570",
            "udp://h:1",
        ),
        *("ipc:///tmp/x", "ipc://@name"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write (tcp://HOST:PORT|an IPv6)"):
        split(endpoint)
    assert host_of(endpoint) == ""


@for_each("endpoint", ["tcp://fd00::1:5570", "tcp://::1:5570", "tcp://::1"])
def test_an_ipv6_address_without_brackets_is_refused_with_them(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"in brackets: tcp://\[fd00::1\]:5570"):
        split(endpoint)


@given(st.text())
def test_any_text_is_an_endpoint_or_a_documented_error(text: str) -> None:
    for endpoint in (text, f"tcp://{text}", f"tcp://{text}:1", f"tcp://[{text}]:1", f"tcp://h:{text}"):
        try:
            host, port = split(endpoint)
        except ConfigurationError:
            continue
        assert 0 <= port <= MAX_PORT
        assert split(join(host, port)) == (host, port)


@for_each(
    "host",
    [
        *("127.0.0.1", "127.0.1.1", "127.255.0.9"),
        *("::1", "::ffff:127.0.0.1"),
        *("localhost", "LocalHost", "a.localhost."),
    ],
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@for_each("host", ["10.0.0.1", "0.0.0.0", "::", "fd00::1", "host", "127.0.0.1.example", "*", "", "128.0.0.1"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_wildcards() -> None:
    assert all(map(is_wildcard, ["*", "0.0.0.0", "::", "::ffff:0.0.0.0", "0:0:0:0:0:0:0:0"]))
    assert not any(map(is_wildcard, ["127.0.0.1", "::1", "10.0.0.0", "host", ""]))


def test_an_ipv4_address_in_ipv6s_dress_is_itself() -> None:
    assert str(ip_of("::ffff:10.0.0.1")) == "10.0.0.1"
    assert ip_of("host") is None


@for_each(
    "header, host",
    [
        ("127.0.0.1:5580", "127.0.0.1"), ("localhost", "localhost"), ("LOCALHOST:1", "LOCALHOST"),
        ("localhost.", "localhost."), ("[::1]:9000", "::1"), ("[::1]", "::1"),
        ("[::FFFF:127.0.0.1]", ""),
        ("evil.example:5580", "evil.example"), ("a_b-c", "a_b-c"),
        *((bad, "") for bad in (
            "", ":", ":80", "a:", "a:b", "a:65536", "a:1:2", "[::1].evil.com", "[::1].evil.com:80", "[::1]a", "[::1",
            "::1", "[evil]", "[127.0.0.1]", "[::1%25a]", "[::1%a]", "me@localhost", "localhost@evil.com", "http://localhost",
            "localhost/", "localhost#",
            "localhost, evil.com", " localhost", "localhost\n", "l\u00f6calhost",
        )),
    ],
)  # fmt: skip
def test_a_host_header_names_one_host_or_none(header: str, host: str) -> None:
    assert host_named(header) == host


def test_an_origin_is_that_of_a_host_or_of_another() -> None:
    assert is_of("http://localhost:80", "LOCALHOST:80")
    assert is_of("https://[::1]:80", "[::1]:80")
    for other in (
        "null",
        "",
        "http://localhost",
        "http://localhost:80/",
        "ftp://localhost:80",
        "http://me@localhost:80",
    ):
        assert not is_of(other, "localhost:80")
