"""``zmqps doctor`` as a user types it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.doctor.hosts import well
from tests.tables import for_each
from zmqps import __version__, keys
from zmqps.cli.main import run
from zmqps.core.protocol import exits
from zmqps.doctor import examine as examination
from zmqps.doctor.examine import Wanted
from zmqps.doctor.facts import Findings, Reach
from zmqps.nodes import inquiry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "200")


STATUS = {"state": "running", "members": [], "gone": [], "waiting": ["waiting for a worker's init"]}


def test_this_host_and_a_cluster_as_plain_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiry, "ask_status", lambda address, timeout, keys: STATUS)
    folder = tmp_path / "keys"
    keys.create(folder)
    (folder / "cluster.key").chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as coordinator:
        port = str(taken.getsockname()[1])
        address = f"tcp://127.0.0.1:{coordinator.getsockname()[1]}"
        code = run(["doctor", "--coordinator", address, "--ports", port, "--quick", "--json", "--keys", str(folder)])
    found = json.loads(capsys.readouterr().out)
    assert code == exits.FAILED
    assert found["wrong"] is True
    rows = {row["check"]: row for row in found["rows"]}
    assert {check for check, row in rows.items() if row["verdict"] == "wrong"} == {f"port {port}", "keys"}
    assert rows["keys"]["advice"] == f"chmod 600 {folder}/cluster.key"
    assert rows["waiting"]["found"] == "waiting for a worker's init"
    assert rows["reachable"]["where"] == "coordinator"
    [facts] = found["findings"]["facts"].values()
    assert facts["versions"]["zmqps"] == __version__


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """Return what is wanted of the examination, which finds that all hosts are well but for one that is down."""
    wanted_so_far: list[Wanted] = []

    async def examine(wanted: Wanted) -> tuple[Findings, list[Reach]]:
        wanted_so_far.append(wanted)
        [down, *others] = reversed(wanted.hosts)
        facts = {host.name: well(1) for host in others or [down]}
        return Findings(hosts=wanted.hosts, facts=facts, problems={down.name: "[down]"} if others else {}), []

    monkeypatch.setattr(examination, "examine", examine)
    return wanted_so_far


def test_a_table_says_how_it_is_and_what_to_do(seen: list[Wanted], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == exits.OK
    table = capsys.readouterr().out
    assert "8 cores, 0.1 busy" in table
    assert "wrong" not in table
    assert (seen[0].port, seen[0].ports, seen[0].hosts[0].address) == (5570, [0], "127.0.0.1")
    assert run(["doctor", "-H", "a:1,b:1"]) == exits.FAILED
    table = capsys.readouterr().out
    assert "[down]" in table
    assert "`ssh b true`" in table


def test_hosts_are_those_of_a_launch(seen: list[Wanted], tmp_path: Path) -> None:
    file = tmp_path / "hosts.txt"
    file.write_text(
        "me@host-a servers=2 workers=0 interface=eth1\nhost-b slots=4 port=2222\nlocalhost slots=1 address=10.0.0.3\n"
    )
    assert run(["doctor", "--hosts", str(file), "--ssh", "rsh", "--interface", "eth0"]) == exits.FAILED
    [wanted] = seen
    assert [(h.name, h.login, h.coordinator, h.servers, h.workers, h.interface, h.address) for h in wanted.hosts] == [
        ("host-a", "me@host-a", True, 2, 0, "eth1", ""),
        ("host-b", "host-b", False, 0, 4, "eth0", ""),
        ("localhost", "", False, 0, 1, "eth0", "10.0.0.3"),
    ]
    assert [host.command[0] for host in wanted.hosts[:2]] == ["rsh", "rsh"]
    assert [host.port for host in wanted.hosts] == [0, 2222, 0]
    assert (wanted.port, wanted.ports) == (0, [0])
    run(["doctor", "-H", "host-a:1,host-b:1", "--port", "7000", "--ports", "7001-7003", "--model", "1MiB"])
    assert (seen[1].port, seen[1].ports) == (7000, [7001, 7002, 7003])
    assert seen[1].model is not None
    assert seen[1].model.nbytes == 1 << 20


def test_the_directory_and_the_script_are_those_of_a_launch(
    seen: list[Wanted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    run(["doctor", "-H", "host-a:1,host-b:1"])
    run(["doctor", "-H", "host-a:1", "--remote-directory", "/srv", "--sync-code", "--", "python", "code/train.py"])
    run(["doctor"])
    first, second, alone = (wanted.code for wanted in seen)
    assert first is not None
    assert second is not None
    assert (first.directory, first.script, first.copied) == (str(tmp_path), "", False)
    assert (second.directory, second.script, second.copied) == ("/srv", "/srv/code/train.py", True)
    assert second.here.script
    assert alone is None


@for_each(
    "arguments, message",
    [
        (["-H", "a:1", "--hosts", __file__], "either with --hosts or with -H"),
        (["--hosts", "/nowhere/hosts.txt"], "does not exist"),
        (["-H", ",".join(f"h{i}" for i in range(300))], "300 hosts are too many"),
        (["--model", "resnet51"], "resnet50, gpt2-small, or its size"),
        (["--model", "4 parsec"], "is not a size"),
        (["--ports", "5580-5571"], "ports"),
        (["--ports", "a"], "5571-5580"),
        (["--ports", "5571-5603"], "33 ports are too many to look at at once; name 32 at most, say --ports 5571-5602"),
        (["-H", "a:1", "--sync-code"], "say which script"),
        (["-H", "a:1", "--", "true"], "names no script"),
        (["--", "python", "train.py"], "name the hosts that will run it"),
        (["--coordinator", "127.0.0.1"], "write tcp://HOST:PORT"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", *arguments]) == exits.USAGE
    assert message in capsys.readouterr().err
