"""Who may send what: every message, in every role and with every key, at a coordinator and at a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.core.machines import Coordinator, hello, logged, sent
from tests.core.server.test_machine import WELCOME, Server
from tests.data.make_wire_vectors import PATH, from_json
from tests.tables import for_each
from zmqps.core.coordinator.members.membership import Origin
from zmqps.core.protocol.events import Action, Log, Received, Send
from zmqps.core.protocol.messages import BY_KIND, Error, Hello, Message
from zmqps.core.protocol.security.roles import NAMES, NOT_TAKEN, TABLE, TO_SERVER, KeyHolder, check_client, check_sender
from zmqps.errors import IdentityError, ProtocolError, PSError

ROLES = ("stranger", "observer", "worker", "server")
KEYS = (None, "observer", "worker", "node")

#: What each role may say to a coordinator, in words of its own: the table must say the same. ``+`` names whose it is.
ANYBODY = set("StatusRequest Watch Examine Exited Hello Leave Farewell".split())
MEMBERS = {*ANYBODY, *"Heartbeat Probed SpansRecorded Piece".split()}
OBSERVERS = {*MEMBERS, *"Init Withdraw Resumed Followed Note".split()}
WORKERS = {*OBSERVERS, *"Init+ Arrive Enter Take SetRates Holding Checkpoint".split()}
OF_SERVERS = "Ready Committed Measured Leading Yielded Discarded Forgotten Saved FileAsk Drain Error"
SERVERS = {*MEMBERS, *OF_SERVERS.split()}
ORDERS = set("Checkpoint+ EndJob Drain+ Scale Examine+ Trace Fetch".split())
BY_ROLE = {"stranger": ANYBODY | ORDERS, "observer": OBSERVERS, "worker": WORKERS, "server": SERVERS}
BY_KEY = {"observer": OBSERVERS, "worker": WORKERS, "node": WORKERS | SERVERS | ORDERS}
#: … and to a server.
AT_SERVER = {
    "stranger": {"Hello", "Leave"},
    "observer": set("Hello Leave Withdraw Pull PullRows ScanRows".split()),
    "worker": set("Hello Leave Withdraw Pull PullRows ScanRows Push PushRows Load".split()),
    "server": {"Hello", "Leave", "Replicate"},
    "backup": {"Welcome", "Replicated", "Left", "Error"},
    "coordinator": set(
        "Welcome Left Error Back HeartbeatAck Probe RecordSpans Clock Fetch Assign Commit Discard Departed Save Unsave "
        "FileAnswer Lead Yield Cut Draining Shutdown".split()
    ),
}


def every_message() -> Iterator[tuple[str, Message]]:
    """Yield one message of each kind with its name; of one that may name whose it is, both."""
    seen = dict[str, Message]()
    for vector in json.loads(PATH.read_text(encoding="utf-8"))["messages"]:
        message: Any = from_json(vector["message"])
        name = type(message).__name__
        seen.setdefault(name, message)
        if (field := NAMES.get(type(message))) is not None:
            named: Any = {"a": 1} if field == "job" and name == "Init" else "some"
            seen[name] = replace(message, **{field: type(named)()})
            seen[f"{name}+"] = replace(message, **{field: named})
    yield from seen.items()


MESSAGES = dict(every_message())


def holder(key: str | None) -> KeyHolder | None:
    return None if key is None else KeyHolder(key, "mallory")


def may(name: str, role: str, key: str | None, keyed: bool) -> bool:
    """Whether the words above allow a message."""
    if role == "stranger" and name not in BY_ROLE[role]:
        return True  # it is refused for another reason: it has not joined
    return name in BY_ROLE[role] and (not keyed or name in (ANYBODY if key is None else BY_KEY[key]))


def test_every_message_that_there_is_has_its_place() -> None:
    taken = {row.message for row in TABLE}
    assert taken | set(NOT_TAKEN) == set(BY_KIND.values()), (
        "enter a new message in zmqps/core/protocol/security/roles.py"
    )
    assert not taken & set(NOT_TAKEN)
    assert len({(row.message, row.names) for row in TABLE}) == len(TABLE)
    assert all(row.coordinator or row.server for row in TABLE)


@for_each("keyed", [False, True])
@for_each("name", MESSAGES)
def test_a_coordinator_takes_a_message_from_those_that_may_send_it_and_from_no_others(name: str, keyed: bool) -> None:
    taken = set().union(*BY_ROLE.values())
    for role in ROLES:
        for key in KEYS if keyed else (None,):
            try:
                check_sender(MESSAGES[name], role, holder(key), keyed=keyed)
                refused: type[PSError] | None = None
            except PSError as error:
                refused = type(error)
            expected = None if may(name, role, key, keyed) else IdentityError
            assert refused is (expected if name in taken else ProtocolError), (name, role, key)


@for_each("name", MESSAGES)
def test_a_server_takes_a_message_from_those_that_may_send_it_and_from_no_others(name: str) -> None:
    for role, allowed in AT_SERVER.items():
        assert {kind.__name__ for kind in TO_SERVER[role]} == allowed
        if name in allowed:
            check_client(MESSAGES[name], role)
        else:
            with pytest.raises(IdentityError if name in set().union(*AT_SERVER.values()) else ProtocolError):
                check_client(MESSAGES[name], role)


# --- the machines ----------------------------------------------------------------------------------


def is_role_s(answers: list[Error]) -> bool:
    """Whether somebody is told that its role, or its key, does not allow what it has asked for."""
    texts = [error.text for error in answers if error.code == IdentityError.code]
    return any("docs/security.md#roles" in text or "this cluster has keys" in text for text in texts)


def only_refused(actions: list[Action]) -> bool:
    """Whether nothing was done but to refuse something."""
    told = [action for action in actions if isinstance(action, Send) and not isinstance(action.message, Error)]
    return not told and all(isinstance(action, Send | Log) for action in actions)


def cluster(keyed: bool, key: str | None = None) -> Coordinator:
    """Return a coordinator with a job, and a member of each role with this key."""
    coordinator = Coordinator()
    coordinator.train("s0", "w0")
    coordinator.join("o0")
    for member in coordinator.machine.membership.members.values():
        member.origin = Origin(holder=holder(key))
    coordinator.machine.identity = replace(coordinator.machine.identity, keyed=keyed)
    return coordinator


SENDERS = {"stranger": "x", "observer": "o0", "worker": "w0", "server": "s0"}


@for_each("keyed", [False, True])
@for_each("name", MESSAGES)
def test_the_coordinator_decides_so_before_it_does_anything(name: str, keyed: bool) -> None:
    taken = set().union(*BY_ROLE.values())
    for key in KEYS if keyed else (None,):
        coordinator = cluster(keyed, key)
        for role, sender in SENDERS.items():
            event = Received(b"@" + sender.encode(), MESSAGES[name], holder=holder(key))
            actions = coordinator.handle(event)
            allowed = name in taken and may(name, role, key, keyed)
            refused = is_role_s(sent(actions, Error))
            if isinstance(MESSAGES[name], Hello):
                coordinator = cluster(keyed, key)
                continue  # which role a key allows to join in is tested below
            assert refused == (not allowed and name in taken), (name, role, key, sent(actions, Error))
            assert allowed or only_refused(actions), (name, role, key, logged(actions))
            coordinator = cluster(keyed, key) if allowed else coordinator  # the next one finds what this one has found


@for_each("key", ["observer", "worker", "node"])
@for_each("role", ["observer", "worker", "server"])
def test_a_key_lets_join_in_its_role_and_in_those_below(role: str, key: str) -> None:
    coordinator = cluster(keyed=True)
    event = Received(b"@new", hello(role, f"{role[0]}9"), holder=holder(key))
    refused = sent(coordinator.handle(event), Error)
    ranks = ("observer", "worker", "server")
    allowed = key == "node" or ranks.index(role) <= ranks.index(key)
    assert bool(refused) != allowed


@for_each("name", MESSAGES)
@for_each("sender", ["w", "o"])
def test_a_server_decides_so_before_it_does_anything(name: str, sender: str) -> None:
    server = Server()
    server.train("w", "o")
    actions = server.get(MESSAGES[name], sender)
    taken = set().union(*AT_SERVER.values())
    allowed = name in AT_SERVER["worker" if sender == "w" else "observer"]
    assert is_role_s(sent(actions, Error)) == (not allowed and name in taken)
    assert allowed or only_refused(actions)


@for_each("name", sorted({*MESSAGES} - AT_SERVER["coordinator"]))
def test_a_server_takes_nothing_else_from_the_coordinator(name: str) -> None:
    server = Server()
    server.get(WELCOME)
    actions = server.get(MESSAGES[name])
    assert sent(actions, Error)
    assert only_refused(actions)


def test_an_observer_changes_no_checkpoint_and_begins_no_job() -> None:
    coordinator = cluster(keyed=False)
    for name in ("Checkpoint", "Checkpoint+", "Init+", "EndJob", "Scale", "Drain+", "Drain"):
        actions = coordinator.take("o0", MESSAGES[name])
        assert is_role_s(sent(actions, Error)), name
        assert only_refused(actions), name
    assert coordinator.run().state == "training"
