"""The far end of `zmqps launch`, spoken to as the launcher does: what it starts, says, and ends with itself."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.imports import ROOT
from tests.leaks import assert_gone
from tests.pace import allow
from zmqps.launch.config import ClusterConfig
from zmqps.launch.far import FILES, GREETING
from zmqps.nodes.inquiry import inquire

pytestmark = pytest.mark.processes

PATIENCE = allow(30.0)
Message = dict[str, Any]


class Agent:
    """An agent in a process of its own."""

    def __init__(self, silence: float, directory: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("ZMQPS_", "OMP_", "MKL_"))}
        env |= {"PYTHONPATH": str(ROOT), "SSH_CONNECTION": "127.0.0.1 1 127.0.0.31 22", "TMPDIR": str(directory)}
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "zmqps", "agent", str(silence)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=env, start_new_session=True,
        )  # fmt: skip
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline().decode()
        assert line.startswith(GREETING)
        self.facts = json.loads(line.removeprefix(GREETING))
        self.directory = directory

    def tell(self, do: str, **facts: Any) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
        self.popen.stdin.flush()

    def hear(self, kind: str) -> Message:
        """Return the next message of a kind, or a refusal; the others are passed over."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            message: Message = json.loads(line)
            if message["is"] in (kind, "refused"):
                return message
        raise AssertionError(f"the agent has ended without {kind!r}")

    def set_up(self, **facts: Any) -> Message:
        told = {"directory": "/", "files": {}, "env": {}, "workers": 2, "name": "x", "local": False}
        self.tell("setup", **{**told, "keys": "", "address": "", "interface": "", **facts})
        return self.hear("ready")

    def start_worker(self, *command: str, name: str = "w", **env: str) -> None:
        self.tell("start", name=name, role="worker", command=command, address="tcp://here:1", index=3, env=env)

    def said(self) -> str:
        lines: list[str] = self.hear("said")["lines"]
        return "\n".join(lines)

    def end(self) -> None:
        for file in (self.popen.stdin, self.popen.stdout):
            assert file is not None
            file.close()
        self.popen.wait(PATIENCE)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def begin(silence: float = 30.0) -> Agent:
        agents.append(Agent(silence, tmp_path))
        return agents[-1]

    yield begin
    for found in agents:
        found.end()
    assert list(tmp_path.glob("zmqps-agent-*")) == [], "keys and secrets go with the agent"


def waiting_worker(agent: Agent) -> list[psutil.Process]:
    """Start a worker with a child of its own, and return all processes of the agent."""
    agent.set_up()
    agent.start_worker("sh", "-c", "sleep 1000 & echo at work; wait")
    assert agent.said() == "at work"
    parent = psutil.Process(agent.popen.pid)
    return [parent, *parent.children(recursive=True)]


@pytest.mark.processes
def test_a_worker_gets_its_part_of_the_cores_and_what_it_was_told(agent, tmp_path) -> None:
    far = agent()
    ready = far.set_up(
        directory=str(tmp_path), files={"keys/secret": base64.b64encode(b"hush").decode()},
        env={"WHERE": f"{FILES}/keys/secret", "MKL_NUM_THREADS": "7"},
    )  # fmt: skip
    assert ready == {"is": "ready", "address": "127.0.0.31", "cores": len(os.sched_getaffinity(0))}
    script = "pwd; cat $WHERE; echo; stat -c %a $WHERE; echo $ZMQPS_COORDINATOR $ZMQPS_WORKER_INDEX $OMP_NUM_THREADS"
    far.start_worker("sh", "-c", script + " $MKL_NUM_THREADS $MORE; exec 1>&2; exit 5", MORE="more")
    threads = max(1, ready["cores"] // 2)
    lines = far.said().splitlines()
    while len(lines) < 4:
        lines += far.said().splitlines()
    assert lines == [str(tmp_path), "hush", "600", f"tcp://here:1 3 {threads} 7 more"]
    assert far.hear("ended") == {"is": "ended", "name": "w", "code": 5}


@pytest.mark.processes
def test_what_cannot_be_done_is_refused_with_what_to_do(agent) -> None:
    far = agent()
    assert "--remote-directory" in far.set_up(directory="/nowhere")["text"]
    assert "cannot be the name of a file" in far.set_up(files={"../escape": ""})["text"]
    assert "no interface 'eth17' on" in far.set_up(interface="eth17")["text"]


def test_keys_that_have_changed_take_the_place_of_those_it_got(agent, tmp_path) -> None:
    def packed(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    far = agent()
    far.set_up(files={"keys/authorized.toml": packed("old"), "job.secret": packed("secret")})
    (path,) = tmp_path.glob("zmqps-agent-*/keys/authorized.toml")
    with path.open() as before:
        far.tell("keys", files={"keys/authorized.toml": packed("a new one")})
        far.tell("route", towards="127.0.0.1")
        far.hear("routed")
        assert (before.read(), path.read_text()) == ("old", "a new one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["authorized.toml"]
    assert (path.parents[1] / "job.secret").read_text() == "secret"
    far.tell("keys", files={"../escape": ""})
    refused = far.hear("refused")
    assert (refused["to"], "cannot be the name of a file" in refused["text"]) == ("keys", True)


def test_the_end_of_the_connection_ends_everything(agent) -> None:
    far = agent()
    processes = waiting_worker(far)
    assert len(processes) == 4  # agent, guard, worker, and the worker's own child
    far.popen.stdin.close()
    assert far.hear("bye")["why"] == "the connection to the launcher has ended"
    assert_gone(processes, PATIENCE)


@pytest.mark.processes
def test_silence_ends_everything(agent) -> None:
    far = agent(silence=1.0)
    processes = waiting_worker(far)
    assert far.hear("bye")["why"] == "nothing was heard from the launcher for 1 s"
    assert_gone(processes, PATIENCE)


@pytest.mark.processes
def test_an_agent_that_is_killed_leaves_nothing(agent) -> None:
    far = agent()
    processes = waiting_worker(far)
    far.popen.kill()
    far.popen.wait(PATIENCE)
    assert_gone(processes, PATIENCE)


@pytest.mark.processes
def test_a_signal_ends_everything_in_order(agent) -> None:
    far = agent()
    processes = waiting_worker(far)
    far.popen.send_signal(signal.SIGTERM)
    assert far.hear("bye")["why"] == "this agent got SIGTERM"
    assert_gone(processes, PATIENCE)


@pytest.mark.processes
def test_a_node_announces_itself_and_says_why_it_cannot_start(agent) -> None:
    far = agent()
    far.set_up()
    far.tell("start", name="c", role="coordinator", settings={"address": "tcp://127.0.0.1:0", "name": "c"})
    announced = far.hear("announced")
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", announced["text"])
    far.tell("joined", address=announced["text"], servers=0)
    assert far.hear("joined")["here"] == 0
    far.tell("start", name="d", role="coordinator", settings={"address": "tcp://10.9.9.9:0"})
    assert "can be reached from other hosts" in far.hear("failed")["text"]
    far.tell("signal", names=["c", "nobody"], number=int(signal.SIGTERM))
    while (ended := far.hear("ended"))["name"] != "c":
        pass
    assert ended["code"] == 143


def test_the_end_of_a_server_is_told_to_the_coordinator(agent) -> None:
    far = agent()
    far.set_up()
    config = ClusterConfig(heartbeat_timeout=1000.0, address="tcp://127.0.0.1:0")
    told = config.for_coordinator().document()
    far.tell("start", name="coordinator", role="coordinator", settings=told, address="")
    address = far.hear("announced")["text"]
    told = config.for_server(0, address).document()
    far.tell("start", name="server", role="server", settings=told, address=address)
    far.hear("announced")

    async def until(holds: Callable[[Any], bool]) -> Any:
        return await inquire(address, timeout=PATIENCE, until=holds)

    (server,) = asyncio.run(until(lambda status: len(status["members"]) == 1))["members"]
    os.kill(server["pid"], signal.SIGKILL)
    (gone,) = asyncio.run(until(lambda status: bool(status["gone"])))["gone"]
    assert (gone["how"], gone["pid"]) == ("lost", server["pid"])
