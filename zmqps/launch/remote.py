"""This end of `zmqps launch`: one connection to the agent of each host, and the processes there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zmqps.core.protocol import exits
from zmqps.errors import (
    SAME_VERSION,
    NodeFailedError,
    ProgramMissingError,
    PSError,
    UnusableHostError,
    from_wire,
    printable,
)
from zmqps.launch.agent import WORDS
from zmqps.launch.far import GREETING, MAX_PREAMBLE_LINES, Message, Voice, decode, open_reader, open_voice
from zmqps.launch.hosts import Host
from zmqps.launch.processes import describe_exit, gone, node_environment, tail, worker_command
from zmqps.logs.lines import Lines
from zmqps.net.system.signals import heed_children

#: Lines of ssh's that an error shows.
LAST_WORDS = 10
#: What ssh itself ends with where it does not reach a host; else it ends as the command there does.
SSH_FAILED = 255
#: Seconds that a host may take to end when asked to; its agent gives its processes half of that.
GOODBYE_S = 20.0


class RemoteProcess:
    """A process of another host; what `zmqps.launch.processes.Process` is for one of this host.

    Parameters
    ----------
    host
        Where it runs.
    name
        Its name in messages.
    role
        coordinator, server or worker.
    log
        The file here in which its output ends up.
    take
        Takes the lines that it says.
    """

    def __init__(
        self, host: RemoteHost, name: str, role: str, log: Path, take: Callable[[Sequence[str]], None]
    ) -> None:
        self.host = host
        self.name = name
        self.role = role
        self.log = log
        self.take = take
        loop = asyncio.get_running_loop()
        self.announced: asyncio.Future[str] = loop.create_future()
        self.code: asyncio.Future[int] = loop.create_future()

    @property
    def ended(self) -> bool:
        """Whether it has ended, or its host is lost."""
        return self.code.done()

    async def announcement(self) -> str:
        """Wait for what a node announces, its endpoint; raise the error that kept it from starting."""
        ends: list[asyncio.Future[Any]] = [self.announced, self.code]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not self.announced.done():
            raise self.failure(self.code.result())
        return self.announced.result()

    async def exited(self) -> int:
        """Wait until it has ended; return its exit code, negative for a signal."""
        return await asyncio.shield(self.code)

    def failure(self, code: int) -> NodeFailedError:
        """Return the error that says how it ended, with its last words."""
        how = self.host.lost if self.host.lost and code == exits.HOST_LOST else describe_exit(code)
        return NodeFailedError(name=self.name, how=how, tail=tail(self.log))

    async def heard(self) -> None:
        """Its agent says that it has ended after all that it said."""

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal unless it has ended."""
        if not self.ended:
            self.host.tell({"do": "signal", "names": [self.name], "number": int(number)})

    def kill(self) -> None:
        """End it, and what it has started, at once."""
        self.send_signal(signal.SIGKILL)


class RemoteHost:
    """A host and the agent there.

    Parameters
    ----------
    host
        The host to reach.
    command
        What runs the agent.
    version
        That of zmqps, which the agent must have as well.
    silence
        Seconds without a word from it after which it is lost.
    hear
        Takes what ssh says, line by line.
    """

    def __init__(
        self, host: Host, command: Sequence[str], version: str, silence: float, hear: Callable[[str], None]
    ) -> None:
        self.host = host
        self.lost = ""  # why, once it is
        self.gone = asyncio.Event()
        self.cores = 0
        self.joined: Callable[[int], None] = lambda here: None
        self.not_renewed: Callable[[str], None] = hear  # why keys that have changed were not taken
        self._command = list(command)
        self._version = version
        self._silence = silence
        self._hear = hear
        self._popen: subprocess.Popen[bytes] | None = None
        self._voice: Voice | None = None
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._processes: dict[str, RemoteProcess] = {}
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._pipes: list[asyncio.ReadTransport] = []
        self._closing = False

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.host.name

    # --- the connection -----------------------------------------------------------------------

    async def open(self) -> None:
        """Start the agent; return when it has answered.

        Raises
        ------
        UnusableHostError
            ssh has failed, or what answered is not an agent of this version; says what was heard.
        ProgramMissingError
            There is no ssh here.
        """
        popen = self._popen = self._spawn()
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        reader, transport = await open_reader(popen.stdout)
        self._pipes.append(transport)
        self._voice = await open_voice(popen.stdin)
        self._tasks.append(asyncio.create_task(self._read_errors(popen.stderr)))
        for _ in range(MAX_PREAMBLE_LINES):
            line = await reader.readline()
            if line.startswith(GREETING.encode()):
                self._check(decode(line.removeprefix(GREETING.encode())))
                break
            if not line.endswith(b"\n"):
                raise await self._unreachable()
            self._said(line)  # of a login script
        else:
            raise UnusableHostError(
                host=self.name,
                why=f"more than {MAX_PREAMBLE_LINES} lines came before an answer",
                advice="let its login scripts print nothing in sessions that are not interactive",
            )
        self._tasks += [asyncio.create_task(self._listen(reader)), asyncio.create_task(self._breathe())]

    def _spawn(self) -> subprocess.Popen[bytes]:
        if not self.host.is_local and shutil.which(self._command[0]) is None:
            raise ProgramMissingError.of(self._command[0], "")
        heed_children()
        return subprocess.Popen(
            worker_command(self._command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=node_environment(), process_group=0,
        )  # fmt: skip

    def _check(self, facts: Message) -> None:
        if facts.get("zmqps") != self._version:
            why = f"zmqps {printable(str(facts.get('zmqps'))[:40])} there, {self._version} here"
            raise UnusableHostError(host=self.name, why=why, advice=SAME_VERSION)

    async def _unreachable(self) -> UnusableHostError:
        assert self._popen is not None
        await gone(self._popen.pid)
        await asyncio.wait(self._tasks[:1], timeout=1.0)
        code = self._popen.wait()
        how = f"{self._command[0]} ended with {describe_exit(code)}, and said nothing"
        return UnusableHostError.of(self.name, self.host.destination, self._last_words, how, reached=code != SSH_FAILED)

    def _words(self) -> str:
        return "\n".join(f"  {line}" for line in self._last_words) or "  (it said nothing)"

    def _said(self, line: bytes) -> None:
        text = printable(line.decode(errors="replace").rstrip("\r\n"))
        self._last_words.append(text)
        self._hear(text)

    async def _read_errors(self, pipe: Any) -> None:
        lines, data = Lines(), b"-"
        reader, transport = await open_reader(pipe)
        self._pipes.append(transport)
        while data:
            data = await reader.read(1 << 16)
            for line in lines.take(data):
                self._said(line.encode())

    async def _breathe(self) -> None:
        while True:
            self.tell({"do": "alive"})
            await asyncio.sleep(self._silence / WORDS)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        why = f"the connection to {self.name} has ended"
        try:
            while True:
                async with asyncio.timeout(self._silence):
                    line = await reader.readline()
                if not line.endswith(b"\n"):
                    break
                self._take(decode(line))
        except TimeoutError:
            why = f"nothing was heard from {self.name} for {self._silence:g} s"
        except (PSError, ValueError, KeyError, TypeError) as error:
            why = f"{self.name} said what cannot be understood: {error!s:.200}"
        self._lose(why)

    def _lose(self, why: str) -> None:
        if not self._closing:
            self.lost = why + (f"; ssh's last words:\n{self._words()}" if self._last_words else "")
        self._answers.put_nowait({"is": "refused", "text": why})
        for process in self._processes.values():
            if not process.code.done():
                process.code.set_result(exits.HOST_LOST)
        self.gone.set()

    def tell(self, message: Message) -> None:
        """Say something to the agent."""
        if self._voice is not None and not self.gone.is_set():
            self._voice.say(message)

    def _take(self, message: Message) -> None:
        kind = message["is"]
        if kind in ("alive", "bye"):
            return
        if kind == "gone":
            self._lose(f"{self.name} has ended what ran there: {message['why']}")
            return
        if kind == "joined":
            self.joined(int(message["here"]))
        elif kind == "said":
            self._processes[message["name"]].take([str(line) for line in message["lines"]])
        elif kind == "announced":
            self._processes[message["name"]].announced.set_result(str(message["text"]))
        elif kind == "failed":
            error = from_wire(int(message["code"]), str(message["text"]), dict(message["facts"]))
            announced = self._processes[message["name"]].announced
            announced.set_exception(error)
            announced.exception()  # no caller may be waiting any more
        elif kind == "ended":
            process = self._processes[message["name"]]
            if not process.code.done():
                process.code.set_result(int(message["code"]))
        elif kind == "refused" and message.get("to") == "keys":
            self.not_renewed(str(message["text"]))
        elif kind == "refused" and message.get("name") in self._processes:
            process = self._processes[message["name"]]
            process.take([f"{self.name}: {message['text']}"])
            process.code.set_result(exits.FAILED)
        else:
            self._answers.put_nowait(message)

    # --- what it can do -----------------------------------------------------------------------

    async def _answer(self, *kinds: str) -> Message:
        message = await self._answers.get()
        if message["is"] not in kinds:
            text = str(message.get("text", message))
            raise NodeFailedError(name=f"the agent of {self.name}", how="a refusal", tail=f"  {text}")
        return message

    async def set_up(self, facts: Mapping[str, Any]) -> str:
        """Tell the agent what all processes need; return the address by which this host is reached, maybe none."""
        self.tell({"do": "setup", **facts})
        answer = await self._answer("ready")
        self.cores = int(answer["cores"])
        return str(answer["address"])

    async def route(self, towards: str) -> str:
        """Return the address by which the host reaches another one."""
        self.tell({"do": "route", "towards": towards})
        return str((await self._answer("routed"))["address"])

    def renew(self, files: Mapping[str, str]) -> None:
        """Have keys that have changed put in the place of those that the host got."""
        self.tell({"do": "keys", "files": dict(files)})

    def start(
        self, name: str, role: str, log: Path, take: Callable[[Sequence[str]], None], facts: Mapping[str, Any]
    ) -> RemoteProcess:
        """Start a process there."""
        process = RemoteProcess(self, name, role, log, take)
        self._processes[name] = process
        if self.gone.is_set():
            process.code.set_result(exits.HOST_LOST)
        self.tell({"do": "start", "name": name, "role": role, **facts})
        return process

    async def close(self) -> None:
        """Let the agent end what still runs there; give it up when that takes too long."""
        self._closing = True
        if self._voice is not None:
            self._voice.close()
        if self._popen is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0 if self.lost else GOODBYE_S):
                    await gone(self._popen.pid)
            self.kill()
            self._popen.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pipe in self._pipes:
            pipe.close()
        await asyncio.sleep(0)  # closed by now

    def kill(self) -> None:
        """End the connection at once; the agent, which notices, ends the rest."""
        if self._popen is not None and self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
