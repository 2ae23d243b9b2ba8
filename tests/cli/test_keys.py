"""``zmqps keys``, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables import for_each
from zmqps import keys
from zmqps.cli.main import run
from zmqps.core.protocol import exits


def test_keys_are_made_shown_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = str(tmp_path / "keys")
    assert run(["keys", "create", folder]) == exits.OK
    assert f"zmqps keys token --keys {folder}" in capsys.readouterr().out
    assert run(["keys", "token", "--keys", folder, "--name", "alice", "--lasts", "12h", "--address", "tcp://h:1"]) == 0
    token = capsys.readouterr().out.strip()
    assert keys.Keys.of_token(token).address == "tcp://h:1"
    assert run(["keys", "revoke", "alice", "--keys", folder]) == exits.OK
    assert "revoked the worker's key 'alice'" in capsys.readouterr().out
    assert run(["keys", "rotate", "worker", "--keys", folder, "--grace", "15min"]) == exits.OK
    assert "a new worker's key" in capsys.readouterr().out
    assert run(["keys", "list", "--keys", folder]) == exits.OK
    shown = capsys.readouterr().out
    assert "no more: revoked" in shown
    assert "until it is revoked" in shown
    assert shown.count("until 20") == 1
    assert all(pair.secret not in shown for pair in keys.Keys.load(folder).pairs.values())


@for_each(
    "arguments, said",
    [
        (["create"], "Missing argument 'DIR'"),
        (["token"], "Missing option '--keys'"),
        (["token", "--keys", "nowhere"], "zmqps keys create makes one"),
        (["rotate", "king", "--keys", "nowhere"], "'king' is not one of"),
        (["token", "--keys", "nowhere", "--lasts", "soon"], "write 90, 15min, 12h or 30d"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", *arguments]) == exits.USAGE
    assert said in capsys.readouterr().err
