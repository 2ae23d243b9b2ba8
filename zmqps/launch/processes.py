"""Processes this one starts and is responsible for: nodes of a cluster, and workers.

No child outlives its parent. A node holds one end of a socket pair (``--parent-fd``), by which it gets its settings,
and stops when the other end closes; a worker is killed by the kernel (`zmqps.launch.leash`). Each child has a process
group of its own, so that Ctrl-C in a terminal reaches the parent alone, which ends the children in
order, and so that what a worker started itself can be ended with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import ConfigurationError, NodeFailedError, PSError, UnsafeFileError, from_wire
from zmqps.files import read_kernel
from zmqps.folder import open_own
from zmqps.launch.supervision import RESTART, TOKEN, Child, Restarts
from zmqps.logs.lines import MAX_LINE_NBYTES, Lines, last_messages
from zmqps.net.identity import PROCESS
from zmqps.net.system.signals import UNKNOWN, heed_children

LEASH = Path(__file__).with_name("leash.py")
#: What a node tells its parent instead of its endpoint when it cannot start: this and a JSON object.
REFUSAL = "error "
#: An announcement is an endpoint or an error; more is not one.
MAX_ANNOUNCEMENT_NBYTES = 64 << 10
#: The settings of a node: so much fits into a socket pair that is not read yet.
MAX_SETTINGS_NBYTES = 128 << 10
SIZE = struct.Struct("!I")
#: By which the workers of one `zmqps up` know each other on `zmqps.pipeline` channels.
CHANNEL_SECRET = secrets.token_hex(16)
#: The variable by which what a supervisor has started is known, and what that has started in turn.
MARK = "ZMQPS_SUPERVISOR"
TAIL_LINES = 10
TAIL_NBYTES = 64 << 10
#: How long the output of an ended process may take to arrive; longer only if another process holds the pipe.
DRAIN_S = 1.0


class Process:
    """A child process.

    Parameters
    ----------
    name
        Its name in messages.
    command
        What to run.
    stdout
        Where its output goes, both streams: a file or `subprocess.PIPE`.
    log
        The file in which that output ends up, for error messages.
    env
        Its environment; by default this process's.
    settings
        A node's, as plain data; it gets ``--parent-fd``, and reads them there. None: it is not a node.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        stdout: int | IO[bytes],
        log: Path,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        #: Proves to the coordinator that a report of this process's end comes from its supervisor.
        self.token = secrets.token_bytes(KEY_NBYTES)
        self.channel: socket.socket | None = None
        self._is_node = settings is not None
        self._group_ended = False
        env = {**(os.environ if env is None else env), PROCESS: self.token.hex()}
        heed_children()
        theirs: socket.socket | None = None
        try:
            if settings is not None:
                self.channel, theirs = socket.socketpair()
                self.channel.setblocking(False)
                hand_over(self.channel, settings)
                command = [*command, "--parent-fd", str(theirs.fileno())]
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT, env=env, process_group=0,
                pass_fds=[theirs.fileno()] if theirs else [],
            )  # fmt: skip
        except BaseException:
            self.close()
            raise
        finally:
            if theirs is not None:
                theirs.close()

    @property
    def ended(self) -> bool:
        """Whether it has ended and was waited for."""
        return self.popen.returncode is not None

    @property
    def ended_whole(self) -> bool:
        """Whether it has ended, and so has all of its process group, as far as that says that it lives in it."""
        return self.ended and (self._is_node or self._group_ended)

    async def announcement(self) -> str:
        """Wait for what a node announces, its endpoint; raise the error that kept it from starting."""
        assert self.channel is not None
        loop = asyncio.get_running_loop()
        line = b""
        while not line.endswith(b"\n") and len(line) < MAX_ANNOUNCEMENT_NBYTES:
            data = await loop.sock_recv(self.channel, 4096)
            if not data:
                raise self.failure(await self.exited())
            line += data
        text = line.decode().rstrip("\n")
        if text.startswith(REFUSAL):
            await self.exited()
            raise from_wire(**json.loads(text.removeprefix(REFUSAL)))
        return text

    def watch(self, other: Process) -> None:
        """Have a coordinator notice by itself that another process of this host ends (`zmqps.nodes.coordinator`)."""
        assert self.channel is not None
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or one of them has ended: heartbeats show it
            fd = os.pidfd_open(other.popen.pid)
            try:
                socket.send_fds(self.channel, [other.token], [fd])
            finally:
                os.close(fd)

    @property
    def tail(self) -> str:
        """Its last messages, indented."""
        return tail(self.log)

    def failure(self, code: int) -> NodeFailedError:
        """Return the error that says how it ended, with its last words."""
        return NodeFailedError(name=self.name, how=describe_exit(code), tail=self.tail)

    async def heard(self) -> None:
        """Its output goes into a file, where it is at once."""

    async def exited(self) -> int:
        """Wait until it has ended; return its exit code, negative for a signal."""
        if not self.ended:
            try:
                fd = os.pidfd_open(self.popen.pid)
            except ProcessLookupError:
                return self._reap()
            except (AttributeError, OSError):  # not Linux, or an old one
                return await asyncio.to_thread(self.popen.wait)
            try:
                await _readable(fd)
            finally:
                os.close(fd)
            self.kill()  # its leftover children, while its pid cannot have been reused
            self._group_ended = True
        return self._reap()

    def _reap(self) -> int:
        if not self.ended:
            try:
                os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # the script waits for all children, and Popen would say 0
                self.popen.returncode = UNKNOWN
        return self.popen.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal unless it has ended."""
        if not self.ended:  # not Popen.send_signal, which might reap it before `exited` has seen it
            with contextlib.suppress(ProcessLookupError):  # another process has reaped it
                os.kill(self.popen.pid, number)

    def kill(self) -> None:
        """End it, and what it has started, at once."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close what this process holds of it; a node that still runs ends by itself."""
        if self.channel is not None:
            self.channel.close()


class Piped(Process):
    """A child process whose output this process reads: ``take`` gets its lines. It needs a running loop."""

    def __init__(
        self, name: str, command: Sequence[str], take: Callable[[Sequence[str]], object], *, log: Path,
        env: Mapping[str, str], settings: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, command, stdout=subprocess.PIPE, log=log, env=env, settings=settings)
        assert self.popen.stdout is not None
        self._pipe = self.popen.stdout
        self._take = take
        self._lines = Lines()
        self._last: deque[str] = deque(maxlen=TAIL_LINES)
        self._silent = asyncio.Event()
        os.set_blocking(self._pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), MAX_LINE_NBYTES)
        except BlockingIOError:
            return
        lines = self._lines.take(data)
        self._last.extend(lines)
        self._take(lines)
        if not data:
            self._hang_up()

    def _hang_up(self) -> None:
        if not self._silent.is_set():
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._pipe.close()
            self._silent.set()

    @property
    def tail(self) -> str:
        return last_messages(self._last, TAIL_LINES)

    async def heard(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._silent.wait(), DRAIN_S)

    def close(self) -> None:
        super().close()
        self._hang_up()


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def notice() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(fd, notice)
    try:
        await future
    finally:
        loop.remove_reader(fd)


async def all_exited(processes: Iterable[Child], timeout: float) -> bool:
    """Wait for processes to end; return whether all have."""
    waits = [asyncio.ensure_future(process.exited()) for process in processes if not process.ended]
    if not waits:
        return True
    _, pending = await asyncio.wait(waits, timeout=timeout)
    for wait in pending:
        wait.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return not pending


async def end(processes: Iterable[Child], number: signal.Signals, grace: float) -> None:
    """Ask processes to end, and after ``grace`` seconds make them."""
    processes = [process for process in processes if not process.ended]
    for process in processes:
        process.send_signal(number)
    if not await all_exited(processes, grace):
        for process in processes:
            process.kill()
        await all_exited(processes, grace)


async def gone(pid: int) -> None:
    """Wait until a process, which need not be a child, has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or an old one; a thread cannot be cancelled, so not everywhere
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            await asyncio.to_thread(psutil.Process(pid).wait)
        return
    try:
        await _readable(fd)
    finally:
        os.close(fd)


def start_of(pid: int) -> int:
    """Return what tells a process of this user from others that had or will have its number; 0 if there is none.

    That is when it started: in clock ticks since the host did, which no setting of the clock changes, or where
    that cannot be known in milliseconds since the epoch.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
            return 0
        with contextlib.suppress(FileNotFoundError):  # not Linux
            return int(read_kernel(f"/proc/{pid}/stat").rpartition(")")[2].split()[19])
        return int(1000 * process.create_time())
    except (psutil.Error, OSError):
        return 0


def mark_of(supervisor: int, start: int) -> dict[str, str]:
    """Return what the environment of all that a supervisor starts has: its process id, and when it started."""
    return {MARK: f"{supervisor}-{start}"}


def has_mark(pid: int, mark: Mapping[str, str]) -> bool:
    """Whether a process of this user has a mark in its environment."""
    import psutil

    try:
        process = psutil.Process(pid)
        environ: dict[str, str] = process.environ()
        return bool(process.uids().real == os.getuid()) and mark.items() <= environ.items()
    except (psutil.Error, OSError):
        return False


def marked(session: int, mark: Mapping[str, str]) -> list[int]:
    """Return the processes of a session that have a mark: the number of the session alone may be another one's now."""
    import psutil

    return [pid for pid in psutil.pids() if _session_id(pid) == session and has_mark(pid, mark)]


def signal_if(pid: int, number: signal.Signals, is_it: Callable[[], bool]) -> None:
    """Send a process a signal if it is the one that is meant; its number cannot be given away in between."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or an old one
        fd = -1
    try:
        if is_it():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number) if fd < 0 else signal.pidfd_send_signal(fd, number)
    finally:
        if fd >= 0:
            os.close(fd)


def _session_id(pid: int) -> int | None:
    """Return the session of a process, of which psutil knows nothing; None if the process has ended."""
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


# --- what to run ------------------------------------------------------------------------------


def node_command(role: str, *flags: str) -> list[str]:
    """Return the command that runs a node under this Python; ``-P``: whatever the current directory holds.

    One that gets its settings by ``--parent-fd`` has its name among the flags all the same, for lists of processes.
    """
    return [sys.executable, "-P", "-m", "zmqps", role, *flags]


def hand_over(channel: socket.socket, settings: Mapping[str, Any]) -> None:
    """Give a node its settings, before it is started.

    Raises
    ------
    ConfigurationError
        They are too large.
    """
    document = json.dumps(settings).encode()
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_SETTINGS_NBYTES)
    try:
        if len(document) <= MAX_SETTINGS_NBYTES:
            return channel.sendall(SIZE.pack(len(document)) + document)
    except BlockingIOError:  # a system with smaller buffers
        pass
    raise ConfigurationError(
        f"the settings of a node have {len(document)} bytes, the limit is {MAX_SETTINGS_NBYTES}: "
        "give fewer --restore-names or --values"
    )


def received(parent_fd: int) -> Any:
    """Return the settings that this node got from its parent, as plain data; what follows them is left to be read.

    Raises
    ------
    ConfigurationError
        The parent has ended, or has said something else.
    """
    with socket.socket(fileno=os.dup(parent_fd)) as parent:
        head = parent.recv(SIZE.size, socket.MSG_WAITALL)
        nbytes = SIZE.unpack(head)[0] if len(head) == SIZE.size else 0
        document = parent.recv(nbytes, socket.MSG_WAITALL) if 0 < nbytes <= MAX_SETTINGS_NBYTES else b""
    try:
        if document and len(document) == nbytes:
            return json.loads(document)
    except ValueError:
        pass
    raise ConfigurationError("--parent-fd is for launchers, which give a node its settings there")


def node_environment() -> dict[str, str]:
    """Return a node's environment: its settings have all it needs, and it finds this very package."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ZMQPS_")}
    home = str(Path(__file__).parents[2])  # where the package is
    if home not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):  # those must stay behind the stdlib
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [home, env.get("PYTHONPATH")]))
    return env


def worker_command(command: Sequence[str]) -> list[str]:
    """Return the command that runs a worker on the leash of this process."""
    return [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *command]


def worker_environment(
    address: str, index: int, job_secret: Path | None = None, lives: Restarts | None = None
) -> dict[str, str]:
    """Return a worker's environment; ``python`` in its command is the Python that runs this.

    The workers of one `up` have one secret for their channels, unless the user's own environment has another. What
    shows the lives of one worker is never that of another supervisor, which has started this one as a worker.
    """
    outer = {name: value for name, value in os.environ.items() if name not in (TOKEN, RESTART)}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {
        "ZMQPS_CHANNEL_SECRET": CHANNEL_SECRET, **outer, "PATH": path, "PYTHONUNBUFFERED": "1",
        "ZMQPS_COORDINATOR": address, "ZMQPS_WORKER_INDEX": str(index),
        **({"ZMQPS_JOB_SECRET": str(job_secret.resolve())} if job_secret is not None else {}),
        **(lives.environment if lives is not None else {}),
    }  # fmt: skip


def launched_for() -> tuple[str, str] | None:
    """Return the coordinator's endpoint and this worker's number if a launcher has started this process as a worker."""
    address, index = os.environ.get("ZMQPS_COORDINATOR"), os.environ.get("ZMQPS_WORKER_INDEX")
    return (address, index) if address and index else None


# --- what to say ------------------------------------------------------------------------------


def refuse(parent_fd: int, error: PSError) -> None:
    """Tell the parent why this node cannot start."""
    text = REFUSAL + json.dumps({"code": error.code, "text": str(error), "facts": error.facts()}) + "\n"
    with contextlib.suppress(OSError):  # it has ended
        os.write(parent_fd, text.encode())


def describe_exit(code: int) -> str:
    """Say in words how a process has ended."""
    if code == UNKNOWN:
        return "an exit code that is not known: another part of this program waits for all children"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def tail(log: Path, num_lines: int = TAIL_LINES) -> str:
    """Return the last messages of a log, indented."""
    try:
        said = _end_of(log)
        if said.count(b"\n") < num_lines:  # it may have continued in a new file a moment ago
            with contextlib.suppress(FileNotFoundError):
                said = _end_of(log.with_name(f"{log.name}.1")) + said
    except (OSError, UnsafeFileError):
        return "  (no log)"
    return last_messages(said.decode(errors="replace").splitlines()[-num_lines:], num_lines)


def _end_of(log: Path) -> bytes:
    with open(log, "rb", opener=open_own) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_NBYTES))
        return file.read(TAIL_NBYTES)
