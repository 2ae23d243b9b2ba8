"""The process that holds a TCP port, for the text of an error."""

from __future__ import annotations


def owner_of(port: int) -> str:
    """Return the listener on a port, as far as this user may know."""
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:  # not Linux: only root may ask
        connections = []
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return f"{_name_of(connection.pid)} (pid {connection.pid})"
    return "another process"


def _name_of(pid: int) -> str:
    import psutil

    try:
        return psutil.Process(pid).name() or "a process"
    except psutil.Error:  # it has just ended
        return "a process"
