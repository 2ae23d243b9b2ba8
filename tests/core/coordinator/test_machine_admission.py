"""Who may be a server of a cluster that takes only those of its user."""

from __future__ import annotations

from dataclasses import replace

from tests.core.machines import Coordinator, errors, hello, identity, sent
from tests.tables import for_each
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol.messages import Hello, Welcome
from zmqps.errors import IdentityError

KEY = b"key of its servers"


def coordinator() -> Coordinator:
    one = Coordinator()
    one.machine = CoordinatorMachine(replace(identity("coordinator"), server_key=KEY), CoordinatorOptions(servers=1))
    one.machine.start(0.0)
    return one


def server(key: bytes) -> Hello:
    return replace(identity("server", "s0"), server_key=key).hello()


@for_each("said", [hello("server", "s0"), server(b"another"), replace(server(KEY), incarnation=b"x" * 16)])
def test_who_does_not_know_the_key_is_no_server(said: Hello) -> None:
    one = coordinator()
    assert errors(one.take("s0", said)) == [IdentityError.code]
    assert not one.machine.servers


def test_who_knows_it_is_one_and_whoever_comes_is_a_worker() -> None:
    one = coordinator()
    assert sent(one.take("s0", server(KEY)), Welcome)
    for role in ("worker", "observer"):
        assert sent(one.take(role, hello(role, role)), Welcome)


def test_where_there_is_no_such_key_whoever_comes_is_a_server() -> None:
    assert sent(Coordinator().take("s0", hello("server", "s0")), Welcome)
    assert sent(Coordinator().take("s0", server(KEY)), Welcome)


def test_a_server_shows_it_to_the_coordinator_alone() -> None:
    who = replace(identity("server", "s0"), server_key=KEY)
    assert who.hello().guard
    assert not who.hello(b"ticket").guard
    assert str(KEY) not in repr(who)
