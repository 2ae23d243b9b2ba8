"""The clients of a server: members of its jobs, each by a ticket of the coordinator, on one connection."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from functools import cache

from zmqps.core.protocol.events import Peer
from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.security.keys import LOADER, proof_of, same, ticket_of
from zmqps.core.protocol.security.roles import TO_SERVER, KeyHolder, check_role, check_same, shut_out
from zmqps.errors import (
    EvictedError,
    IdentityError,
    LimitError,
    NotJoinedError,
    ProtocolError,
    PSError,
)

#: A worker takes a few hundred bytes and a ledger here. The coordinator has no more members.
MAX_CLIENTS = 4096
#: Departed incarnations whose reason is known. Those that pushed are refused after that, too.
MAX_BARRED = 4096


class Client:
    """A worker or observer that has shown its ticket."""

    __slots__ = ("epochs", "hello", "holder", "loads", "may", "name", "peer", "puller")

    def __init__(
        self,
        hello: Hello,  # its Hello
        peer: Peer,  # the connection of that Hello: no other one speaks for it
        holder: KeyHolder | None = None,  # the holder of its key, if there are keys
    ) -> None:
        self.hello = hello
        self.holder = holder
        self.may = TO_SERVER[hello.role]  # its permissions; `welcome` has checked that its key allows the role
        self.peer = peer
        self.epochs: set[int] = set()  # of the job's shards here for which it has shown a ticket
        self.loads: set[int] = set()  # those for which it was asked to upload the initial values
        self.name = f"{hello.name} ({hello.host}, pid {hello.pid})"  # in errors and logs
        # a treatment keeps copies for it; an observer pushes nothing
        self.puller = hello.incarnation if hello.role == "worker" else b""


@cache
def departed(evicted: int) -> PSError:
    """Return the error for a departed client that comes back; ``evicted`` as in `Departed`.

    One for all of them: thousands are remembered. Only copies of it (`again`) are raised.
    """
    if evicted == 2:
        return shut_out("worker")
    if evicted:
        return EvictedError("the coordinator presumed this worker dead; connect again as a new worker")
    return NotJoinedError("this worker has left; connect again as a new one")


class Clients:
    """The clients of a server, their connections, and those that may not come back."""

    def __init__(self, *, keyed: bool = False) -> None:  # whether a welcome needs a key
        self._keyed = keyed
        self.by_incarnation: dict[bytes, Client] = {}
        self._by_peer: dict[Peer, Client] = {}
        #: Returns the client of a connection; None: no ticket was shown on it.
        self.find: Callable[[Peer], Client | None] = self._by_peer.get
        self._barred: OrderedDict[bytes, tuple[Peer, PSError]] = OrderedDict()  # by incarnation
        self._barred_peers: dict[Peer, bytes] = {}  # the departed incarnation of a connection

    def __len__(self) -> int:
        return len(self.by_incarnation)

    def incarnation(self, peer: Peer) -> bytes:
        """Return the client of a connection; empty: no ticket was shown on it."""
        client = self.find(peer)
        return b"" if client is None else client.hello.incarnation

    def welcome(
        self, peer: Peer, hello: Hello, key: bytes, holder: KeyHolder | None = None, past: Container[bytes] = ()
    ) -> bytes:
        """Welcome a member of the job whose shard has this key; return the proof of this server's identity.

        The same incarnation may come on another connection: that one speaks for it from then on. It may show tickets
        for several shards, one after the other, over one connection. A ticket does not expire before its job: ``past``
        are the departed members that pushed to it, however long ago.

        Raises
        ------
        IdentityError
            Its ticket was not made by the coordinator for it, and for this server; or its key does not allow this.
        PSError
            It was lost, or has left.
        """
        who = hello.incarnation
        check_role(holder, hello.role, keyed=self._keyed)
        loads = hello.role == "worker" and same(hello.secret, ticket_of(key, LOADER, who))
        if not loads and not same(hello.secret, ticket_of(key, hello.role, who)):
            raise IdentityError(
                f"{hello.role} {hello.name} has no ticket for this server and the job of epoch {hello.epoch}; the "
                "coordinator gives one to each member with the job: connect there, then init"
            )
        if who in self._barred:
            raise self._barred[who][1].again()
        behind, client = self._by_peer.get(peer), self.by_incarnation.get(who)
        if client is not None:
            check_same(client.holder, holder, f"{hello.role} {client.name}")
        if behind is not None and behind is not client:
            raise ProtocolError("a connection belongs to one incarnation; open another one")
        if client is None:
            if who in past:
                raise departed(0).again()
            if len(self) >= MAX_CLIENTS:
                raise LimitError(what="number of workers", got=len(self) + 1, limit=MAX_CLIENTS)
            client = self.by_incarnation[who] = Client(hello, peer, holder)
        elif client.peer != peer:
            del self._by_peer[client.peer]
        client.peer = peer
        client.epochs.add(hello.epoch)
        if loads:
            client.loads.add(hello.epoch)
        self._by_peer[peer] = client
        return proof_of(key, hello.role, who)

    def check_known(self, peer: Peer) -> None:
        """Raise the error of the departed client of a connection."""
        if peer in self._barred_peers:
            raise self._barred[self._barred_peers[peer]][1].again()

    def drop(self, epoch: int) -> list[bytes]:
        """A shard has left this server: return the clients without a ticket for any other one."""
        gone = list[bytes]()
        for who, client in self.by_incarnation.items():
            client.loads.discard(epoch)
            if epoch in client.epochs:
                client.epochs.remove(epoch)
                gone += [] if client.epochs else [who]
        return gone

    def bars(self, incarnation: bytes) -> bool:
        """Whether an incarnation was lost or has left."""
        return incarnation in self._barred

    def forget(self, incarnation: bytes) -> Client | None:
        """Remove a client, and return it."""
        client = self.by_incarnation.pop(incarnation, None)
        if client is not None:
            del self._by_peer[client.peer]
        return client

    def bar(self, incarnation: bytes, error: PSError) -> Client | None:
        """Refuse an incarnation from now on, whatever ticket it shows; return its client.

        A repeated call changes nothing: the error on its old connection stays the same.
        """
        client = self.forget(incarnation)
        if incarnation in self._barred:
            return client
        peer = b"" if client is None else client.peer
        self._barred[incarnation] = peer, error
        if peer:
            self._barred_peers[peer] = incarnation
        while len(self._barred) > MAX_BARRED:
            self._unbar(next(iter(self._barred)))
        return client

    def _unbar(self, incarnation: bytes) -> Peer:
        """Forget a departed incarnation; return its connection."""
        peer, _ = self._barred.pop(incarnation, (b"", None))
        if self._barred_peers.get(peer) == incarnation:  # another one may have come over it since
            del self._barred_peers[peer]
        return peer

    def validate(self, epochs: Iterable[int]) -> None:
        """Assert that both directions agree, and that all clients have tickets for shards of these epochs."""
        here, barred = set(epochs), self._barred
        assert len(self._by_peer) == len(self) <= MAX_CLIENTS
        for who, client in self.by_incarnation.items():
            assert who == client.hello.incarnation
            assert self._by_peer.get(client.peer) is client
            assert client.epochs
            assert client.loads <= client.epochs <= here
            assert who not in barred
        assert len(barred) <= MAX_BARRED
        assert not self._barred_peers or all(barred[who][0] == peer for peer, who in self._barred_peers.items())
