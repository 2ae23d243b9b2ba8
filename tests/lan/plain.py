"""Plain TCP, to compare with: ``serve PORT`` here, ``send HOST PORT NBYTES`` or ``ping HOST PORT`` elsewhere."""

from __future__ import annotations

import socket
import sys
import time


def serve(port: int) -> None:
    with socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
                while size > 0:
                    size -= len(connection.recv(1 << 16))
                connection.sendall(b"!")


def send(host: str, port: int, nbytes: int) -> float:
    """Return the seconds until the other side has confirmed so many bytes."""
    began = time.monotonic()
    with socket.create_connection((host, port), timeout=600) as connection:
        connection.sendall(nbytes.to_bytes(8, "big") + bytes(nbytes))
        connection.recv(1)
    return time.monotonic() - began


def ping(host: str, port: int) -> float:
    """Return the seconds of one round trip: those of a connection's beginning."""
    began = time.monotonic()
    with socket.create_connection((host, port), timeout=4):
        took = time.monotonic() - began
    return took


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    elif sys.argv[1] == "send":
        print(f"{send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])):.6f}")
    else:
        print(f"{min(ping(sys.argv[2], int(sys.argv[3])) for _ in range(3)):.6f}")
