"""``zmqps doctor`` as a user types it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from zmqps.cli import doctor as command
from zmqps.cli.main import run
from zmqps.core.protocol import exits
from zmqps.doctor import examine as examination
from zmqps.doctor.examine import Wanted
from zmqps.doctor.facts import Findings, Reach

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


def test_as_json_rows_and_findings_are_plain_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "STATUS_S", 0.1)
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


def test_hosts_are_those_of_a_launch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Wanted] = []

    async def examine(wanted: Wanted) -> tuple[Findings, list[Reach]]:
        seen.append(wanted)
        return Findings(hosts=wanted.hosts, problems={host.name: "down" for host in wanted.hosts}), []

    monkeypatch.setattr(examination, "examine", examine)
    file = tmp_path / "hosts.txt"
    file.write_text(
        "me@host-a servers=2 workers=0 interface=eth1\nhost-b slots=4\nlocalhost slots=1 address=10.0.0.3\n"
    )
    assert run(["doctor", "--hosts", str(file), "--ssh", "rsh", "--interface", "eth0"]) == exits.FAILED
    assert "`ssh me@host-a true`" in capsys.readouterr().out
    [wanted] = seen
    assert [(h.name, h.login, h.coordinator, h.servers, h.workers, h.interface, h.address) for h in wanted.hosts] == [
        ("host-a", "me@host-a", True, 2, 0, "eth1", ""),
        ("host-b", "host-b", False, 0, 4, "eth0", ""),
        ("localhost", "", False, 0, 1, "eth0", "10.0.0.3"),
    ]
    assert [host.command[0] for host in wanted.hosts[:2]] == ["rsh", "rsh"]
    assert (wanted.port, wanted.ports) == (0, [0])
    run(["doctor", "-H", "host-a:1,host-b:1", "--port", "7000", "--ports", "7001-7003", "--model", "1MiB"])
    assert (seen[1].port, seen[1].ports) == (7000, [7001, 7002, 7003])
    assert seen[1].model is not None
    assert seen[1].model.nbytes == 1 << 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-H", "a:1", "--hosts", "hosts.txt"], "either with --hosts or with -H"),
        (["-H", ",".join(f"h{i}" for i in range(300))], "300 hosts are too many"),
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
