"""Whether one host reaches another by TCP: the listener and the prober.

The prober sends a token and gets the token's hash back, which proves that it reached the right listener:
a name can lead to another host, and loopback addresses always lead to one's own.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import socket
import threading
import time
from contextlib import suppress

from zmqps.doctor.facts import Reach
from zmqps.net.connections import hang_up, receive

TOKEN_NBYTES = 32
#: Knocks that a listener answers at a time; one is over in a few round trips. For one more the oldest is hung up on.
MAX_KNOCKS = 64
#: Seconds that a listener spends on one connection in all.
PATIENCE_S = 5.0
ROUND_TRIPS = 8
#: How often a listener checks whether it should end.
TICK_S = 0.05

NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL}


class Listener:
    """Listens on a port and answers probes with the token.

    Parameters
    ----------
    host
        An address of this host; empty for all of them.
    port
        Which port; 0 for any.
    token
        The token that probes carry.

    Raises
    ------
    OSError
        The port cannot be had.
    """

    def __init__(self, host: str, port: int, token: bytes) -> None:
        self._token = token
        if host:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        elif socket.has_dualstack_ipv6():
            self._socket = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._socket = socket.create_server(("", port))
        self.port = int(self._socket.getsockname()[1])
        self._socket.settimeout(TICK_S)
        self._room = threading.Semaphore(MAX_KNOCKS)
        self._answered: dict[socket.socket, None] = {}  # the oldest first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zmqps-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with self._socket:
            while not self._ended.is_set():
                try:
                    connection = self._socket.accept()[0]
                except OSError:  # no probe came, or it has left again
                    continue
                if not self._room.acquire(blocking=False):
                    for oldest in list(self._answered)[:1]:  # a knock takes milliseconds
                        hang_up(oldest)
                    if not self._room.acquire(timeout=PATIENCE_S):
                        connection.close()
                        continue
                self._answered[connection] = None
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        ends_at = time.monotonic() + PATIENCE_S
        try:
            with connection, suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not hmac.compare_digest(receive(connection, TOKEN_NBYTES, ends_at), self._token):
                    return
                connection.sendall(hashlib.sha256(self._token).digest())
                for _ in range(ROUND_TRIPS):
                    connection.sendall(receive(connection, 1, ends_at))
        finally:
            del self._answered[connection]
            self._room.release()


def knock(source: str, target: str, host: str, port: int, token: bytes, timeout: float) -> Reach:
    """Return whether ``host`` can be reached at ``port``.

    Parameters
    ----------
    source, target
        What the two are called in the result.
    token
        The listener's; empty to connect only, to a node that runs.
    timeout
        Seconds for all of it, once it is connected; and before, for that.
    """

    def found(problem: str, latency_s: float = 0.0, near: str = "", far: str = "") -> Reach:
        return Reach(
            source=source, target=target, port=port, problem=problem, latency_s=latency_s, near=near, far=far
        )  # fmt: skip

    try:
        begun = time.perf_counter()
        with socket.create_connection((host, port), timeout=timeout) as connection:
            latency, ends_at = time.perf_counter() - begun, time.monotonic() + timeout
            near, far = connection.getsockname()[0], connection.getpeername()[0]
            if token:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(token)
                if receive(connection, TOKEN_NBYTES, ends_at) != hashlib.sha256(token).digest():
                    return found("stranger", near=near, far=far)
                latency = min(_round_trip(connection, ends_at) for _ in range(ROUND_TRIPS))
            return found("", latency, near, far)
    except (socket.gaierror, UnicodeError):
        return found("unresolved")
    except ConnectionRefusedError:
        return found("refused")
    except TimeoutError:
        return found("silent")
    except ConnectionError:  # something else listens there, and did not like the token
        return found("stranger")
    except OSError as error:
        return found("no route" if error.errno in NO_ROUTE else f"{error.strerror or error}")


def _round_trip(connection: socket.socket, ends_at: float) -> float:
    begun = time.perf_counter()
    connection.sendall(b"?")
    receive(connection, 1, ends_at)
    return time.perf_counter() - begun
