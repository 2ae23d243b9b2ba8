"""What the nodes of a running cluster have recorded, as one trace on the coordinator's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zmqps.errors import ConfigurationError, ProtocolError
from zmqps.trace.merge import Clock, Process, Trace, wires_of
from zmqps.trace.ring import unpack


def assemble(nodes: Sequence[Mapping[str, Any]], data: Mapping[str, bytes | bytearray]) -> Trace:
    """Return the trace of what was fetched.

    Processes of the coordinator's host share its clock. The others' were compared with it four times a second while
    they recorded, and are shifted by what they differ.

    Parameters
    ----------
    nodes
        What the coordinator has said of each: ``who``, ``role``, ``rank``, ``name``, ``offset_s``, ``error_s``.
    data
        What each has recorded, by ``who``.

    Raises
    ------
    ConfigurationError
        No node has recorded anything.
    """
    found: list[tuple[Mapping[str, Any], Process]] = []
    notes, epoch_ns, own = [], 0, ""
    for node in nodes:
        if (packed := data.get(str(node.get("who")))) is None:
            continue
        try:
            process, head = unpack(bytes(packed))
        except ProtocolError as error:
            notes.append(f"{node.get('role')} {node.get('rank')}: {error}")
            continue
        role = "worker" if node.get("role") == "observer" else node.get("role")
        process.name = f"{node.get('role')} {node.get('rank')} ({node.get('name')}, {node.get('host')})"
        process.label = f"{role} {node.get('rank')}"
        process.incarnation = str(node.get("who"))[:8]
        if lost := head.get("lost"):
            notes.append(f"{process.label} had no room for {lost} older spans: record for less long, or give it more")
        if role == "coordinator":
            own, epoch_ns = process.boot, int(head.get("epoch_ns") or 0)
        found.append((node, process))
    if not any(process.spans for _, process in found):
        raise ConfigurationError("no node has recorded anything: was anything trained while the trace went on?")
    clocks: dict[str, Clock] = {}
    for node, process in found:
        offset, wrong_by = node.get("offset_s"), node.get("error_s")
        if process.boot == own or not isinstance(offset, float | int) or not isinstance(wrong_by, float | int):
            if process.boot != own:
                notes.append(
                    f"{process.label}: its clock was not compared with the coordinator's; its times are its own"
                )
            continue
        known = clocks.get(process.boot)
        if known is None or wrong_by * 1e6 < known.error_us:  # processes of one host share a clock: the surest counts
            clocks[process.boot] = Clock(offset * 1e6, wrong_by * 1e6)
    processes = [process for _, process in found]
    for process in processes:
        if (clock := clocks.get(process.boot)) is not None:
            process.spans = [span.shifted(clock.shift_us) for span in process.spans]
    processes.sort(key=lambda process: process.name)
    return Trace(processes, wires_of(processes), clocks, notes=notes, epoch_us=epoch_ns / 1e3)
