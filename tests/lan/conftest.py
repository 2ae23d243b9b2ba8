"""Tests on a LAN of network namespaces: skipped where this machine cannot make one, or not all that a test asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lan.ability import missing
from tests.lan.lan import Lan

#: Seconds a test on a LAN may take: its nodes share the processors of one machine, which may have other things to do.
TIMEOUT = 150


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look what ``@pytest.mark.lan("limit", "block")`` needs beside hosts with sshd."""
    for marker in item.iter_markers("lan"):
        for ability in ("hosts", "ssh", *marker.args):
            if reason := missing(ability):
                pytest.skip(f"no {ability}: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what starts processes on several hosts more time than a test of one."""
    for item in items:
        if item.get_closest_marker("lan") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture
def lan() -> Iterator[Lan]:
    """Four hosts, for one test."""
    with Lan(4) as made:
        yield made
