"""`zmqps drain`: a server goes while its cluster stays, by the command and by SIGTERM."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.durable.nodes import PATIENCE, Nodes, servers_in
from zmqps.cli.main import run
from zmqps.core.protocol import exits
from zmqps.launch.processes import all_exited
from zmqps.nodes.inquiry import run_blocking

pytestmark = pytest.mark.processes


def test_servers_go_by_command_and_by_signal_and_the_last_one_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Nodes(tmp_path, 3) as nodes:

        def drain(name: str) -> tuple[int, str]:
            code = run(["drain", name, "--coordinator", nodes.address, "--timeout", str(PATIENCE)])
            said = capsys.readouterr()
            return code, said.out + said.err

        def ended(name: str) -> bool:
            return run_blocking(all_exited([nodes.servers[name]], PATIENCE))

        code, said = drain("server-1")
        assert code == exits.OK, said
        assert "server-1 is empty" in said
        assert ended("server-1")
        assert nodes.servers["server-1"].popen.returncode == exits.OK
        code, said = drain("server-1")
        assert code == exits.FAILED
        assert "there is no server 'server-1'; here are: server-" in said
        nodes.servers["server-2"].send_signal(signal.SIGTERM)
        assert ended("server-2")
        assert nodes.servers["server-2"].popen.returncode == exits.OK
        assert "drained: server-2 is empty" in nodes.log("server-2")
        code, said = drain("server-0")
        assert code == exits.FAILED
        assert "there is no other server that stays" in said
        assert [member["name"] for member in servers_in(nodes.wait_until(lambda _: True))] == ["server-0"]
        nodes.servers["server-0"].send_signal(signal.SIGTERM)
        assert ended("server-0")
        assert "nothing can be handed over" in nodes.log("server-0")


def test_jobs_lie_on_as_many_servers_as_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Nodes(tmp_path, 2) as nodes, zmqps.connect(nodes.address, timeout=PATIENCE) as worker:
        worker.init({"w": np.zeros((8, 4), np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=1.0), mode="async")

        def scale(servers: int) -> tuple[int, str]:
            code = run(["scale", "--servers", str(servers), "--coordinator", nodes.address, "--timeout", str(PATIENCE)])
            said = capsys.readouterr()
            return code, said.out + said.err

        code, said = scale(4)
        assert code == exits.FAILED
        assert "there are only 2; start 2 more" in said
        code, said = scale(1)
        assert code == exits.OK, said
        assert "jobs are on 1 server" in said
        [stays] = servers_in(nodes.wait_until(lambda status: len(servers_in(status)) == 1))  # the first that joined
        nodes.wait_for_end("server-1" if stays["name"] == "server-0" else "server-0")
        worker.push({"w": np.full((8, 4), -1, np.float32)})
        assert (worker.pull()["w"] == 1).all()


@pytest.mark.parametrize("command", [["drain", "server-0"], ["scale", "--servers", "2"]], ids=lambda words: words[0])
def test_where_nobody_listens_that_is_said_soon(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zmqps.nodes.inquiry.ANSWER_S", 0.2)  # however long the change itself may take
    assert run([*command, "--coordinator", "tcp://127.0.0.1:1", "--timeout", "600"]) == exits.COORDINATOR_LOST
    assert f"{command[0]} timed out after 0.2 s" in capsys.readouterr().err
