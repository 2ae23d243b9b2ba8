"""``zmqps doctor`` as a user types it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from zmqps.cli.main import run
from zmqps.core.protocol import exits

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "200")


def test_this_host_is_looked_at_and_a_taken_port_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        code = run(["doctor", "--port", port, "--quick", "--model", "resnet50", "--workers", "4"])
    table = capsys.readouterr().out
    assert code == exits.FAILED
    assert f"port {port}" in table
    assert "end it, or choose another port" in table
    assert "ResNet-50 with 4 workers and 1 server" in table


def test_as_json_rows_and_findings_are_plain_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    code = run(["doctor", "--coordinator", "tcp://127.0.0.1:1", "--quick", "--json", "--keys", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert code == exits.FAILED
    assert found["wrong"] is True
    wrong = {row["check"]: row["advice"] for row in found["rows"] if row["verdict"] == "wrong"}
    assert wrong.keys() == {"status", "port 1", "keys"}
    assert wrong["keys"] == f"chmod 700 {tmp_path}"
    [facts] = found["findings"]["facts"].values()
    assert facts["versions"]["zmqps"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "resnet51"], "resnet50, gpt2-small, or its size"),
        (["--model", "4 parsec"], "is not a size"),
        (["--ports", "5580-5571"], "ports"),
        (["--ports", "a"], "5571-5580"),
        (["--coordinator", "127.0.0.1"], "write tcp://HOST:PORT"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", *arguments]) == exits.USAGE
    assert message in capsys.readouterr().err
