"""Who may talk to a server, against a model that remembers everything: in any order of joining, leaving and lying."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core.machines import KEY, identity, peer, ticketed
from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.security.keys import LOADER, proof_of, ticket_of
from zmqps.core.server import clients as module
from zmqps.core.server.clients import Clients
from zmqps.errors import EvictedError, IdentityError, LimitError, NotJoinedError, ProtocolError, PSError

OTHER_KEY = b"of other servers"
NAMES = [f"w{i}" for i in range(6)]
#: Each is a connection; any of the nodes may try any of them.
PEERS = [peer(f"c{i}") for i in range(6)]
MOST_CLIENTS, MOST_BARRED = 3, 3


def who(name: str) -> bytes:
    return identity("worker", name).incarnation


def hello(name: str, secret: bytes, epoch: int) -> Hello:
    return identity("worker", name).hello(secret, epoch)


class AnyOrder(RuleBasedStateMachine):
    """Members and strangers say what they like over any connection."""

    @initialize()
    def begin(self) -> None:
        self.clients = Clients()
        self.limits = module.MAX_CLIENTS, module.MAX_BARRED
        module.MAX_CLIENTS, module.MAX_BARRED = MOST_CLIENTS, MOST_BARRED
        self.peers: dict[str, bytes] = {}  # of each client
        self.epochs: dict[str, set[int]] = {}  # that it has shown a ticket for
        self.loads: dict[str, set[int]] = {}
        self.barred: dict[str, tuple[bytes | None, PSError]] = {}  # the oldest first
        self.pushed: set[str] = set()  # of the clients
        self.past: set[bytes] = set()  # who has pushed and has gone

    def teardown(self) -> None:
        module.MAX_CLIENTS, module.MAX_BARRED = self.limits

    def refusal(self, name: str, at: bytes) -> type[PSError] | None:
        """Return how one with a good ticket is refused."""
        if name in self.barred:
            return type(self.barred[name][1])
        behind = next((other for other, its in self.peers.items() if its == at), name)
        if behind != name:
            return ProtocolError
        if name not in self.peers and who(name) in self.past:
            return NotJoinedError
        return LimitError if name not in self.peers and len(self.peers) == MOST_CLIENTS else None

    @rule(name=st.sampled_from(NAMES), at=st.sampled_from(PEERS), epoch=st.sampled_from([1, 2]), loads=st.booleans())
    def comes(self, name: str, at: bytes, epoch: int, loads: bool) -> None:
        """With the ticket that the coordinator made for it, perhaps over another connection than before."""
        said = ticketed("worker", name, epoch=epoch, loads=loads)
        refused = self.refusal(name, at)
        if refused is not None:
            with pytest.raises(refused):
                self.clients.welcome(at, said, KEY, past=self.past)
            return
        assert name not in self.pushed or name in self.peers, "what was applied of it may be applied again"
        assert self.clients.welcome(at, said, KEY, past=self.past) == proof_of(KEY, "worker", who(name))
        self.peers[name] = at
        self.epochs.setdefault(name, set()).add(epoch)
        self.loads.setdefault(name, set()).update({epoch} if loads else ())

    @rule(
        name=st.sampled_from(NAMES), at=st.sampled_from(PEERS), epoch=st.sampled_from([1, 2, 3]),
        secret=st.sampled_from(
            [b"", KEY, ticket_of(OTHER_KEY, "worker", who("w0")), ticket_of(KEY, "observer", who("w0")),
             ticket_of(KEY, "worker", who("stranger")), ticket_of(KEY, LOADER, who("stranger")),
             *(proof_of(KEY, "worker", who(name)) for name in NAMES)]
        ),
    )  # fmt: skip
    def lies(self, name: str, at: bytes, epoch: int, secret: bytes) -> None:
        """Somebody says a name without its ticket, with what else may be known: nothing changes."""
        with pytest.raises(IdentityError, match="has no ticket for this server"):
            self.clients.welcome(at, hello(name, secret, epoch), KEY)

    @rule(name=st.sampled_from(NAMES))
    def pushes(self, name: str) -> None:
        if name in self.peers:
            self.pushed.add(name)

    @rule(name=st.sampled_from(NAMES))
    def is_forgotten(self, name: str) -> None:
        client = self.clients.forget(who(name))
        assert (client is not None) == (name in self.peers)
        self.has_gone(name)

    @rule(name=st.sampled_from(NAMES), lost=st.booleans())
    def is_barred(self, name: str, lost: bool) -> None:
        error = EvictedError("gone") if lost else NotJoinedError("left")
        client = self.clients.bar(who(name), error)
        assert (client is not None) == (name in self.peers)
        self.barred.setdefault(name, (self.peers.get(name), error))  # said again, it changes nothing
        while len(self.barred) > MOST_BARRED:
            del self.barred[next(iter(self.barred))]
        self.has_gone(name)

    @rule(epoch=st.sampled_from([1, 2]))
    def shard_goes(self, epoch: int) -> None:
        """A client of another shard stays."""
        there = {name for name, epochs in self.epochs.items() if epoch in epochs}
        for name in self.peers:
            self.epochs[name].discard(epoch)
            self.loads[name].discard(epoch)
        gone = self.clients.drop(epoch)
        assert set(gone) == {who(name) for name in there if not self.epochs[name]}
        for name in [name for name in there if who(name) in gone]:
            self.clients.forget(who(name))
            self.has_gone(name)

    def has_gone(self, name: str) -> None:
        if name in self.pushed:
            self.past.add(who(name))
        self.peers.pop(name, None)
        self.epochs.pop(name, None)
        self.loads.pop(name, None)

    @invariant()
    def nobody_else_speaks_for_a_client(self) -> None:
        self.clients.validate(set().union(*self.epochs.values()))
        assert len(self.clients) == len(self.peers)
        for name, at in self.peers.items():
            client = self.clients.find(at)
            assert client is self.clients.by_incarnation[who(name)]
            assert client is not None
            assert (client.peer, client.epochs, client.loads) == (at, self.epochs[name], self.loads[name])
        for at in set(PEERS) - set(self.peers.values()):
            assert self.clients.find(at) is None

    @invariant()
    def a_connection_is_told_what_bars_the_last_one_behind_it(self) -> None:
        told = {at: error for at, error in self.barred.values() if at is not None}
        for at in PEERS:
            if at not in told:
                self.clients.check_known(at)
                continue
            with pytest.raises(PSError) as caught:
                self.clients.check_known(at)
            assert (type(caught.value), str(caught.value)) == (type(told[at]), str(told[at]))
            assert told[at].__traceback__ is None, "it would keep the message that was refused"


AnyOrder.TestCase.settings = settings(max_examples=20, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase


def test_an_observer_is_nobody_whose_copies_are_kept_and_no_loader() -> None:
    clients = Clients()
    for role, name in (("observer", "o"), ("worker", "w")):
        clients.welcome(peer(name), ticketed(role, name), KEY)
    observer, worker = (clients.find(peer(name)) for name in "ow")
    assert observer is not None
    assert worker is not None
    assert (observer.puller, worker.puller) == (b"", who("w"))
    assert observer.name == "o (host, pid 7)"
    with pytest.raises(IdentityError):
        clients.welcome(peer("p"), identity("observer", "p").hello(ticket_of(KEY, LOADER, who("p")), 1), KEY)


def test_a_connection_that_had_two_clients_is_told_of_the_last_when_the_first_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_BARRED", 2)
    clients = Clients()
    for name in ("a", "b"):
        clients.welcome(peer("same"), ticketed("worker", name), KEY)
        clients.bar(who(name), EvictedError(name))
    clients.bar(who("c"), EvictedError("c"))  # one too many: the first is not remembered
    with pytest.raises(EvictedError, match="b"):
        clients.check_known(peer("same"))


def test_who_is_barred_twice_is_still_told_over_its_connection() -> None:
    clients = Clients()
    clients.welcome(peer("w"), ticketed("worker", "w"), KEY)
    clients.bar(who("w"), NotJoinedError("it said goodbye"))
    assert clients.bar(who("w"), EvictedError("it was lost")) is None
    with pytest.raises(NotJoinedError, match="it said goodbye"):
        clients.check_known(peer("w"))


def test_who_pushed_and_has_gone_does_not_come_back_when_it_is_no_longer_known_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_BARRED", 1)
    clients = Clients()
    for name in "ab":
        clients.bar(who(name), EvictedError("lost"))
    with pytest.raises(NotJoinedError, match="connect again as a new one"):
        clients.welcome(peer("a"), ticketed("worker", "a"), KEY, past={who("a")})
    assert clients.welcome(peer("a"), ticketed("worker", "a"), KEY)
    assert clients.welcome(peer("p"), ticketed("worker", "a"), KEY, past={who("a")}), "it is here"
