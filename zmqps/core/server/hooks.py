"""Which part handles which event of a server: the kernel's own, and those that extensions register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zmqps.core.node.timers import Timed
from zmqps.core.protocol.events import Action, NetworkEvent, Peer
from zmqps.core.protocol.messages import Message
from zmqps.core.server.clients import Client
from zmqps.core.server.tenant import Tenant

Hook: TypeAlias = Callable[[Tenant, float], list[Action]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The handlers.

    Parameters
    ----------
    orders
        Messages of the coordinator; others concern only the member.
    requests
        Messages of known clients.
    events, returned
        Events that are not messages; results of background work, by the kind of their tag.
    links
        Events of connections that this server has opened to others.
    """

    orders: dict[type[Message], Callable[[Any, float], list[Action]]] = field(default_factory=dict)
    requests: dict[type[Message], Callable[[Client, Any], list[Action]]] = field(default_factory=dict)
    events: dict[type, Callable[[Any, float], list[Action]]] = field(default_factory=dict)
    returned: dict[type, Callable[[Any, Any, float], list[Action]]] = field(default_factory=dict)
    links: dict[Peer, Callable[[NetworkEvent, float], list[Action]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The functions called, in order, for events of a shard; none without extensions.

    Parameters
    ----------
    assigned, built, loaded, committed, discarded
        A shard is given to this server, which may be refused (`PSError`); it is built; it has its values; it has
        committed a step; it is freed.
    welcomed
        A client has shown its ticket for a shard.
    counted
        Return more of a shard's counters for the status.
    timers
        Other timers.
    validated
        Assert the invariants.
    """

    assigned: list[Hook] = field(default_factory=list)
    built: list[Hook] = field(default_factory=list)
    loaded: list[Hook] = field(default_factory=list)
    committed: list[Hook] = field(default_factory=list)
    discarded: list[Hook] = field(default_factory=list)
    welcomed: list[Callable[[Client, Tenant], list[Action]]] = field(default_factory=list)
    counted: list[Callable[[Tenant, float], Mapping[str, Any]]] = field(default_factory=list)
    timers: list[Timed] = field(default_factory=list)
    validated: list[Callable[[], None]] = field(default_factory=list)
