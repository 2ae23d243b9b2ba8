"""Where nodes answer over HTTP: loopback, or elsewhere with a token, or on a trusted network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.web.server import WebPlace, url


@for_each(
    "address, found",
    [
        ("127.0.0.1:9570", ("127.0.0.1", 9570)),
        ("0", ("127.0.0.1", 0)),
        ("9570", ("127.0.0.1", 9570)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:1", ("localhost", 1)),
    ],
)
def test_addresses_of_this_host_need_nothing(address: str, found: tuple[str, int]) -> None:
    place = WebPlace(address)
    place.check()
    assert place.host_and_port == found
    assert place.is_open


@for_each("address", ["host", "tcp://127.0.0.1:1", "127.0.0.1:70000", "::1:9", ":9570", "a b:1", "-1"])
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not an address for --metrics; give HOST:PORT, such as 127\.0\.0\.1"):
        WebPlace(address).check()


@pytest.mark.parametrize("address", ["0.0.0.0:9570", "*:9570", "10.0.0.7:9570", "[::]:0", "node-a:9570"])
def test_beyond_this_host_it_takes_a_token_or_trust(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"reached from other hosts.* pass --metrics-token FILE.*ssh -L"):
        WebPlace(address).check()
    (tmp_path / "token").write_text("0123456789abcdef\n")
    WebPlace(address, tmp_path / "token").check()
    WebPlace(address, insecure=True).check()


def test_a_token_that_can_be_guessed_is_none(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("1234\n")
    with pytest.raises(ConfigurationError, match=r"the token of --page-token in .* has 4 bytes"):
        WebPlace("0", tmp_path / "token", option="page").check()
    (tmp_path / "token").write_text("one two three four five\n")
    with pytest.raises(ConfigurationError, match="visible ASCII"):
        WebPlace("0", tmp_path / "token").check()


def test_metrics_are_found_by_a_url() -> None:
    assert url("::1", 9570) == "http://[::1]:9570/metrics"
