"""Tests on a LAN of network namespaces: skipped where this machine cannot make one, or not all that a test asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lan.ability import missing
from tests.lan.lan import Lan


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look what ``@pytest.mark.lan("limit", "block")`` needs beside hosts with sshd."""
    for marker in item.iter_markers("lan"):
        for ability in ("hosts", "ssh", *marker.args):
            if reason := missing(ability):
                pytest.skip(f"no {ability}: {reason}")


@pytest.fixture
def lan() -> Iterator[Lan]:
    """Four hosts, for one test."""
    with Lan(4) as made:
        yield made
