"""``lan`` runs over wires of namespaces and says what it must, or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import namespaces
from bench.__main__ import main
from bench.namespaces import Hosts, NamespaceError, WireOptions
from tests.lan.ability import missing


def run(path: Path, *words: str) -> dict[str, float]:
    if reason := missing("limit"):
        pytest.skip(reason)
    # plain sockets of a vector of 256 KiB take 21 ms at 100 Mbit/s: enough to be seen beside all else
    result = CliRunner().invoke(
        main, ["lan", "--mbit", "100", "--model", "256KB", "--steps", "2", "--json", str(path), *words]
    )
    assert result.exit_code == 0, result.output
    assert "of the line" in result.output
    written: dict[str, float] = json.loads(path.read_text())
    return written


@pytest.mark.processes
def test_no_step_is_faster_than_the_line(tmp_path: Path) -> None:
    written = run(tmp_path / "lan.json")
    assert written["checked"]
    assert written["bound_s"] == pytest.approx(256e3 / 12.5e6, rel=0.05)
    # a token bucket lets its first bytes pass at once
    assert written["median_s"] > 0.3 * written["bound_s"]
    assert written["limit_s"] > 0.3 * written["bound_s"]


@pytest.mark.processes
def test_a_delay_counts_once_a_round_trip_and_a_codec_leaves_less_to_carry(tmp_path: Path) -> None:
    written = run(tmp_path / "lan.json", "--delay", "50", "--codec", "bf16")
    assert written["median_s"] > 0.05
    assert written["limit_s"] > 0.05
    assert written["bound_s"] == pytest.approx(128e3 / 12.5e6, rel=0.05)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "PROGRAMS", ("no-such-program",))
    result = CliRunner().invoke(main, ["lan"])
    assert result.exit_code == 1
    assert "no-such-program" in result.output


def test_wires_have_names() -> None:
    assert str(WireOptions(mbit=1000, delay_ms=0.2)) == "1 Gbit/s, +0.2 ms"
    assert str(WireOptions(mbit=100, loss=0.001)) == "100 Mbit/s, +0 ms, 0.10% lost"


def test_hosts_that_cannot_be_wired_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := missing("limit"):
        pytest.skip(reason)
    held: list[int] = []
    make = Hosts._host

    def host(self: Hosts) -> int:
        held.append(make(self))
        return held[-1]

    monkeypatch.setattr(Hosts, "_host", host)
    monkeypatch.setattr(namespaces, "WIRE", "a-name-that-is-too-long")
    with pytest.raises(NamespaceError, match="a-name-that-is-too-long"):
        Hosts(WireOptions(mbit=100)).__enter__()
    assert held
    assert not [pid for pid in held if Path(f"/proc/{pid}").exists()]
