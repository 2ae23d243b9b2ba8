"""Failures at a chosen moment, rather than at a drawn one."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator import Node, Simulation
from zmqps.core.protocol.messages import Message


def kill_at(simulation: Simulation, kind: type[Message], nth: int, victim: Callable[[Node, str], str]) -> list[str]:
    """Kill a node as the nth message of a kind is about to leave; return who was killed."""
    seen, killed = [], []

    def hook(sender: Node, receiver: str, message: Message) -> None:
        if isinstance(message, kind):
            seen.append(message)
            if len(seen) == nth:
                killed.append(victim(sender, receiver))
                simulation.kill(simulation.nodes[killed[0]])

    simulation.on_send.append(hook)
    return killed


def stop_at(simulation: Simulation, kind: type[Message], nth: int, seconds: float) -> list[Node]:
    """Stop the sender of the nth message of a kind, as it has left; return who was stopped."""
    seen, stopped = [], []

    def hook(sender: Node, receiver: str, message: Message) -> None:
        if isinstance(message, kind):
            seen.append(message)
            if len(seen) == nth:
                stopped.append(sender)
                simulation.stop(sender, seconds)

    simulation.on_send.append(hook)
    return stopped
