"""A probe on another host, started by the system's own ssh, or on this one; asked and answered as it goes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from typing import Any, Self

from zmqps.doctor.facts import Host
from zmqps.doctor.probe import MARK
from zmqps.errors import printable

#: Seconds until a host must have answered the first time: a login, and Python's start.
START_S = 20.0
#: Seconds that a probe has to end by itself.
END_S = 2.0
#: Other lines, as from a login shell, that are skipped before an answer.
MAX_OTHER_LINES = 1000
MAX_ANSWER_NBYTES = 4 << 20
#: Of what ssh and Python say when it goes wrong, only the end counts.
MAX_ERROR_NBYTES = 8 << 10


class ProbeError(Exception):
    """A probe cannot be started, or has ended."""


class RemoteProbe:
    """A probe that runs on a host; use it with ``async with``.

    Parameters
    ----------
    host
        Where; its `Host.command` starts the probe.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._command = host.command or (sys.executable, "-P", "-m", "zmqps", "doctor", "--probe")
        self._numbers = itertools.count()
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Start it; whether it runs shows with the first answer."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, limit=MAX_ANSWER_NBYTES,
            )  # fmt: skip
        except FileNotFoundError:
            raise ProbeError(f"there is no {self._command[0]} on this host") from None
        except OSError as error:
            raise ProbeError(f"cannot run {self._command[0]}: {error.strerror}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()  # which ends a probe
        try:
            async with asyncio.timeout(END_S):
                await process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    async def ask(self, timeout: float, **command: Any) -> Any:
        """Return the answer to a command of `zmqps.doctor.probe.Probe`.

        Raises
        ------
        ProbeError
            There is none within ``timeout`` seconds, or it is an error; says which.
        """
        async with self._turn:
            number = next(self._numbers)
            process = self._process
            assert process is not None
            assert process.stdin is not None
            try:
                async with asyncio.timeout(timeout):
                    process.stdin.write(json.dumps({"number": number, **command}).encode() + b"\n")
                    await process.stdin.drain()
                    return await self._answer(process, number)
            except TimeoutError:
                raise ProbeError(f"no answer within {timeout:.0f} s") from None
            except (ConnectionError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                # the line is too long, or not an answer
                raise ProbeError(await self._last_words(process)) from None

    async def _answer(self, process: asyncio.subprocess.Process, number: int) -> Any:
        assert process.stdout is not None
        for _ in range(MAX_OTHER_LINES):
            line = await process.stdout.readline()
            if not line:
                raise ConnectionResetError
            if not line.startswith(MARK.encode()):
                continue
            answer = json.loads(line[len(MARK) :])
            if answer.get("number") == number:
                if "error" in answer:
                    raise ProbeError(printable(str(answer["error"])[:500]))
                return answer["answer"]
        raise ProbeError(f"{MAX_OTHER_LINES} lines of something else than answers")

    @staticmethod
    async def _last_words(process: asyncio.subprocess.Process) -> str:
        """Return why a probe has ended: its last line of error, or its exit code."""
        assert process.stderr is not None
        said = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while data := await process.stderr.read(MAX_ERROR_NBYTES):
                    said = (said + data)[-MAX_ERROR_NBYTES:]
                await process.wait()
        lines = said.decode(errors="replace").split("\n")
        return next((printable(line.strip()[:300]) for line in reversed(lines) if line.strip()), "it ended at once")
