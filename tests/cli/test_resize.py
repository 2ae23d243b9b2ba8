"""`zmqps drain`: a server goes while its cluster stays, by the command and by SIGTERM."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

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
        assert "server-1 has nothing any more" in said
        assert ended("server-1")
        assert nodes.servers["server-1"].popen.returncode == exits.OK
        code, said = drain("server-1")
        assert code == exits.FAILED
        assert "there is no server 'server-1'; here are: server-" in said
        nodes.servers["server-2"].send_signal(signal.SIGTERM)
        assert ended("server-2")
        assert nodes.servers["server-2"].popen.returncode == exits.OK
        assert "drained: server-2 has nothing any more" in nodes.log("server-2")
        code, said = drain("server-0")
        assert code == exits.FAILED
        assert "there is no other server that stays" in said
        assert [member["name"] for member in servers_in(nodes.wait_until(lambda _: True))] == ["server-0"]
        nodes.servers["server-0"].send_signal(signal.SIGTERM)
        assert ended("server-0")
        assert "nothing can be handed over" in nodes.log("server-0")


def test_where_nobody_listens_that_is_said_soon(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["drain", "server-0", "--coordinator", "tcp://127.0.0.1:1", "--timeout", "0.2"]) == exits.COORDINATOR_LOST
    )
    assert "drain timed out after 0.2 s" in capsys.readouterr().err
