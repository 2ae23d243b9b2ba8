"""The far end of ``zmqps launch``: starts nodes and workers on its host, and ends them when the launcher has ended.

``ssh HOST python -m zmqps agent`` runs it. It hears on standard input what to do and says on standard output
what happens (`zmqps.launch.far`). When its input ends, when it has heard nothing for a while, or when it is asked to
end by a signal, it ends all that it has started. When it is killed itself, nodes notice the end of a socket pair, the
kernel kills the workers, and the guard (`zmqps.launch.guard`) what these have started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from zmqps.errors import ConfigurationError, NodeFailedError, PSError
from zmqps.keys import Keys
from zmqps.launch.config import GRACE_S
from zmqps.launch.far import (
    FILES,
    GREETING,
    Message,
    Voice,
    decode,
    encode,
    filled,
    open_reader,
    open_voice,
)
from zmqps.launch.guard import Guard
from zmqps.launch.handout import write_files
from zmqps.launch.nodes import AT_ONCE
from zmqps.launch.processes import (
    DRAIN_S,
    Process,
    end,
    mark_of,
    node_command,
    node_environment,
    start_of,
    worker_command,
    worker_environment,
)
from zmqps.launch.reach import own_address, route_towards
from zmqps.launch.reports import Reports
from zmqps.launch.supervision import failed
from zmqps.logs.lines import Lines
from zmqps.net import loops
from zmqps.net.system.signals import answered
from zmqps.nodes.inquiry import inquire

#: Seconds without a word from the other end after which it is taken for gone; how often each says one in this time.
SILENCE_S = 20.0
WORDS = 5
CHUNK_NBYTES = 64 << 10
#: What numerical libraries ask how many threads to take: each worker gets its part of the cores.
THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_limits(num_workers: int, cores: int | None = None) -> dict[str, str]:
    """Return the variables by which several workers share the cores of this host, or ``cores`` of them."""
    return dict.fromkeys(THREADS, str(max(1, (cores or num_cores()) // max(1, num_workers))))


class Agent:
    """All that runs on this host for one launcher.

    Parameters
    ----------
    reader, voice
        To and from the launcher.
    silence
        Seconds without a word from it after which it is taken for gone.
    """

    def __init__(self, reader: asyncio.StreamReader, voice: Voice, silence: float) -> None:
        self._reader = reader
        self._voice = voice
        self._silence = silence
        self._processes: dict[str, Process] = {}
        self._roles: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._guard = Guard()
        self._folder = Path(tempfile.mkdtemp(prefix="zmqps-agent-"))
        self._guard.remove(self._folder)
        self._env: dict[str, str] = {}
        self._mark = mark_of(os.getpid(), start_of(os.getpid()))
        self._num_workers = 1
        self._keys: Keys | None = None
        self._reports = Reports()
        self._ending = False
        self._actions = {
            "alive": lambda told: None, "setup": self._setup, "start": self._start, "signal": self._signal,
            "joined": self._joined, "route": self._route, "keys": self._renew,
        }  # fmt: skip

    async def run(self) -> str:
        """Do what is said until nothing is said any more; return why."""
        task = asyncio.current_task()
        assert task is not None
        asked: list[str] = []

        def ask(number: signal.Signals) -> None:
            asked.append(number.name)
            task.cancel()

        with answered((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), ask):
            self._begin(self._breathe())
            try:
                return await self._obey()
            except asyncio.CancelledError:
                return f"this agent got {asked[0] if asked else 'cancelled'}"
            except ConnectionError:
                return "the connection to the launcher has ended"
            finally:
                await self._end()

    async def _obey(self) -> str:
        while True:
            try:
                async with asyncio.timeout(self._silence):
                    line = await self._reader.readline()
            except TimeoutError:
                why = f"nothing was heard from the launcher for {self._silence:g} s"
                self._voice.say({"is": "gone", "why": why})  # before it hears of processes that end because of that
                return why
            if not line.endswith(b"\n"):
                return "the connection to the launcher has ended"
            told = decode(line)
            try:
                action = self._actions[told["do"]]
                answer = action(told)
                if answer is not None:
                    self._begin(answer)
            except (PSError, OSError) as error:
                self._refuse(told, error)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, told: Message, error: Exception) -> None:
        self._voice.say({"is": "refused", "to": told.get("do"), "name": told.get("name", ""), "text": str(error)})

    async def _breathe(self) -> None:
        while True:
            self._voice.say({"is": "alive"})
            await asyncio.sleep(self._silence / WORDS)

    # --- what can be asked for ----------------------------------------------------------------

    def _setup(self, told: Message) -> None:
        """Go to the directory, keep the files, and say by which address this host is reached."""
        try:
            os.chdir(told["directory"])
        except OSError as error:
            raise ConfigurationError(
                f"there is no directory {told['directory']!r} ({error.strerror}): name one with --remote-directory, "
                "or copy the script's folder with --sync-code"
            ) from None
        write_files(self._folder, told["files"])
        self._env = self._filled(told["env"])
        self._num_workers = told["workers"]
        self._keys = Keys.load(self._folder / told["keys"]) if told["keys"] else None
        address = own_address(told["address"], told["interface"], told["name"], is_local=told["local"])
        self._voice.say({"is": "ready", "address": address, "cores": num_cores()})

    def _renew(self, told: Message) -> None:
        """Replace the keys from the start by changed ones; their users reload them by themselves."""
        write_files(self._folder, told["files"], again=True)

    def _start(self, told: Message) -> None:
        name, role, settings = told["name"], told["role"], None
        if role == "worker":
            command, env = worker_command(told["command"]), self._worker_environment(told)
        else:
            command, env = node_command(role, f"--name={name}"), node_environment()
            settings = self._filled(told["settings"])
        process = Process(
            name, command, stdout=subprocess.PIPE, log=Path(os.devnull), env=env | self._mark, settings=settings
        )
        self._guard.watch(process.popen.pid)
        self._processes[name], self._roles[name] = process, role
        if role != "worker":
            self._begin(self._announce(process))
        self._begin(self._follow(process, told.get("address", "")))

    def _worker_environment(self, told: Message) -> dict[str, str]:
        venv = {"VIRTUAL_ENV": sys.prefix} if sys.prefix != sys.base_prefix else {}
        mine: dict[str, str] = self._filled(told["env"])
        env = worker_environment(told["address"], told["index"])
        return thread_limits(self._num_workers) | venv | env | self._env | mine

    def _filled(self, told: Any) -> Any:
        return filled(told, {FILES: str(self._folder)})

    def _signal(self, told: Message) -> None:
        for name in told["names"]:
            if (process := self._processes.get(name)) is not None:
                number = signal.Signals(told["number"])
                process.kill() if number == signal.SIGKILL else process.send_signal(number)

    async def _joined(self, told: Message) -> None:
        """Say how many servers have joined, until all have."""
        said: set[int] = set()

        def joined(status: Any) -> bool:
            here = sum(member["role"] == "server" for member in status["members"])
            if here not in said:
                said.add(here)
                self._voice.say({"is": "joined", "here": here})
            return bool(here >= told["servers"])

        try:
            await inquire(told["address"], timeout=float("inf"), until=joined, keys=self._keys)
        except PSError as error:
            self._refuse(told, error)

    def _route(self, told: Message) -> None:
        self._voice.say({"is": "routed", "address": route_towards(told["towards"])})

    # --- processes ----------------------------------------------------------------------------

    async def _announce(self, process: Process) -> None:
        try:
            text = await process.announcement()
        except NodeFailedError:
            return  # that it has ended says so, and its log is at the other end
        except PSError as error:
            self._voice.say(
                {"is": "failed", "name": process.name, "code": error.code, "text": str(error), "facts": error.facts()}
            )
        else:
            self._voice.say({"is": "announced", "name": process.name, "text": text})

    async def _follow(self, process: Process, coordinator: str) -> None:
        """Pass on what a process says, and then how it has ended; tell the coordinator at an address, too."""
        assert process.popen.stdout is not None
        reader, transport = await open_reader(process.popen.stdout)
        talk = asyncio.create_task(self._pass_on(process.name, reader))
        code = await process.exited()
        self._guard.forget(process.popen.pid)
        # a worker that fails has another life, or the cluster ends with it
        if not self._ending and not (self._roles[process.name] == "worker" and failed(code)):
            self._reports.tell(process, code, coordinator, self._keys)
        await asyncio.wait([talk], timeout=DRAIN_S)
        transport.close()
        talk.cancel()
        self._voice.say({"is": "ended", "name": process.name, "code": code})
        process.close()

    async def _pass_on(self, name: str, reader: asyncio.StreamReader) -> None:
        lines, data = Lines(), b"-"
        with contextlib.suppress(ConnectionError):
            while data:
                data = await reader.read(CHUNK_NBYTES)
                if said := lines.take(data):
                    self._voice.say({"is": "said", "name": name, "lines": said})
                    await self._voice.flush()  # a launcher that does not read blocks the writer, as a pipe does

    async def _end(self) -> None:
        """End workers, coordinator and servers, in this order."""
        self._ending = True
        await self._reports.close()
        for role in ("worker", "coordinator", "server"):
            found = [process for name, process in self._processes.items() if self._roles[name] == role]
            await end(found, AT_ONCE if role == "server" else signal.SIGTERM, GRACE_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._guard.close()


async def serve(output: BinaryIO, silence: float) -> None:
    """Be an agent on standard input and a file."""
    reader, transport = await open_reader(sys.stdin)
    voice = await open_voice(output)
    why = await Agent(reader, voice, silence).run()
    voice.say({"is": "bye", "why": why})
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            await voice.flush()
    voice.close()
    transport.close()


def run(version: str, silence: float) -> None:
    """Be an agent on standard input and output, of a version of zmqps."""
    with open(os.dup(1), "wb", buffering=0) as output:
        os.dup2(2, 1)  # whatever else prints does so where it is taken for text
        facts = {"zmqps": version, "python": platform.python_version(), "host": socket.gethostname()}
        output.write(GREETING.encode() + encode(facts))
        loops.run(serve(output, silence))
