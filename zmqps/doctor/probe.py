"""What runs on each host while the doctor looks: commands in on standard input, answers out, one JSON object a line.

It ends with its standard input, so it outlives neither the doctor nor the ssh that started it, and after a while
without a command.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

from zmqps.doctor.facts import Reach
from zmqps.doctor.host import look
from zmqps.doctor.knock import Listener, knock
from zmqps.errors import AddressInUseError, PSError
from zmqps.net.gauge import Receiver, send
from zmqps.net.system.addresses import owner_of
from zmqps.net.system.memory import keep_freed_memory

#: Seconds without a command after which a probe ends.
IDLE_S = 120.0
#: A command that asks for more than this is not the doctor's.
MAX_COMMAND_NBYTES = 1 << 20
#: Ports of servers that are looked at on one host, where the coordinator may have one more; and knocks at a time.
MAX_PORTS = 32
MAX_THREADS = 16
#: The start of each answer; a login shell may print other lines.
MARK = "zmqps-doctor "


class Probe:
    """Carries out commands; what it opened is closed by `close`.

    Parameters
    ----------
    version
        Of zmqps.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._open: list[Listener | Receiver] = []

    def run(self, command: Mapping[str, Any]) -> Any:
        """Return the answer to a command, plain data.

        Raises
        ------
        PSError, OSError, KeyError, TypeError, ValueError
            It cannot be carried out.
        """
        what = command["do"]
        if what == "time":
            return time.time()
        if what == "look":
            where = {name: command.get(name, "") for name in ("keys", "directory", "script")}
            return asdict(look(self._version, command["names"], **where))
        if what == "listen":
            return self._listen(command["host"], command["ports"], bytes.fromhex(command["token"]))
        if what == "knock":
            return self._knock(command["source"], command["at"], command["patience"])
        if what == "receive":
            token = bytes.fromhex(command["token"])
            receiver = Receiver(command["host"], command["port"], token, encrypted=command["encrypted"])
            self._open.append(receiver)
            return {"port": receiver.port, "key": receiver.key}
        if what == "send":
            return send(
                command["to"], bytes.fromhex(command["token"]), key=command["key"], seconds=command["seconds"],
                nbytes=command["nbytes"], timeout=command["patience"],
            )  # fmt: skip
        if what == "close":
            return self.close()
        raise ValueError(f"unknown command {what!r:.80}")

    def close(self) -> None:
        """Close what was opened."""
        for thing in self._open:
            thing.close()
        self._open.clear()

    def _listen(self, host: str, ports: Sequence[int], token: bytes) -> list[dict[str, Any]]:
        """Listen on ports; return the port bound for each, or its present owner."""
        if len(ports) > MAX_PORTS + 1:
            raise ValueError(f"{len(ports)} ports are too many to look at at once")
        answers = []
        for port in ports:
            try:
                listener = Listener(host, port, token)
            except OSError as error:
                answers.append({"port": port, "owner": _owner(port, error)})
            else:
                self._open.append(listener)
                answers.append({"port": listener.port, "owner": ""})
        return answers

    @staticmethod
    def _knock(source: str, at: Sequence[Sequence[Any]], timeout: float) -> list[dict[str, Any]]:
        """Knock at (target, host, port, token), several at a time."""
        found: dict[int, Reach] = {}
        left = list(enumerate(at))

        def work() -> None:
            while left:
                try:
                    number, (target, host, port, token) = left.pop()
                except IndexError:  # another thread was quicker
                    return
                found[number] = knock(source, target, host, port, bytes.fromhex(token), timeout)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(MAX_THREADS, len(at)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [asdict(found[number]) for number in sorted(found)]


def _owner(port: int, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "the system, which keeps it for root"
    if isinstance(error, socket.gaierror):
        return str(error)
    return owner_of(port) if port else str(error)


def serve(commands: BinaryIO, answers: BinaryIO, version: str) -> None:
    """Carry out commands until there are none any more, or none has come for a while."""
    keep_freed_memory()  # as zmqps's own processes do: bandwidth is measured as they have it
    probe = Probe(version)
    try:
        for line in _lines(commands):
            number: Any = None
            try:
                command = json.loads(line)
                number = command["number"]
                answer = {"number": number, "answer": probe.run(command)}
            except AddressInUseError as error:
                answer = {"number": number, "error": f"port {error.port} is in use by {error.owner}"}
            except (PSError, OSError, LookupError, TypeError, ValueError) as error:
                answer = {"number": number, "error": f"{error}" or type(error).__name__}
            answers.write(f"{MARK}{json.dumps(answer)}\n".encode())
            answers.flush()
    except BrokenPipeError:
        pass  # the client has left
    finally:
        probe.close()


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield lines as they come, until the stream ends or nothing has come for `IDLE_S`."""
    rest = b""
    while len(rest) < MAX_COMMAND_NBYTES and select.select([stream], [], [], IDLE_S)[0]:
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
