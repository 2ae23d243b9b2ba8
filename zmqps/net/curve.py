"""CURVE: what encrypts connections, and who may open them (ZeroMQ's ZAP).

Without a handler libzmq lets in *any* key, so a node with keys always has one, in a thread of its own: a handshake does
not wait for a shard that computes. The same thread looks twice a second whether the list of keys has changed. libzmq
goes on serving a connection whose key was revoked meanwhile, so `Gate` also says which peers may speak no more.
"""

from __future__ import annotations

import hmac
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping

import zmq
from zmq.utils import z85

from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol.events import Peer
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.errors import ConfigurationError, PSError
from zmqps.net.keyring import Entry, Keys, Pair, read_entries, version_of

#: Between two looks at the list of keys, in seconds: a revoked one is refused within a second.
WATCH_S = 0.5
#: After so long a list that could not be read is tried again, changed or not: descriptors may have been short.
AGAIN_S = 5.0
#: A connection whose key was revoked lasts so much longer, for its end to be told.
LAST_WORD_S = 0.1
#: After so long somebody who has taken the name of another connection has been shut.
CONTESTED_S, TAKEN = 1.0, "somebody else has taken its name"
#: By this ZeroMQ knows that a socket wants its handler asked, and refuses everybody where there is none.
DOMAIN = b"zmqps"
_ZAP = "inproc://zeromq.zap.01"
_POLLIN = int(zmq.POLLIN)

log = logging.getLogger("zmqps.keys")


def check_curve() -> None:
    """Raise `ConfigurationError` where ZeroMQ was built without encryption."""
    if not zmq.has("curve"):
        raise ConfigurationError(
            "this pyzmq was built without CURVE (libsodium), so it can use no keys; install the wheel that its project "
            "publishes: pip install --force-reinstall --only-binary pyzmq pyzmq"
        )


def new_pair() -> Pair:
    """Return a new pair of keys."""
    check_curve()
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


def secure_dealer(dealer: zmq.Socket[bytes], keys: Keys, role: str) -> None:
    """Let a socket show a pair of keys, and talk to the nodes of this cluster only; before it connects.

    Raises
    ------
    ConfigurationError
        These keys are for others, or damaged.
    """
    check_curve()
    pair = keys.pair(role)
    try:
        dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.cluster.encode())
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
        dealer.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    except zmq.ZMQError as error:
        raise ConfigurationError(f"the keys of {keys.source} are damaged: {error}") from None


def answer_with_pair(router: zmq.Socket[bytes], secret: str) -> bytes:
    """Encrypt with keys made of a secret that both ends know; return the key that the other one has to show."""
    check_curve()
    router.setsockopt(zmq.CURVE_SERVER, 1)
    router.setsockopt(zmq.CURVE_SECRETKEY, _made_of(secret, b"answering").secret.encode())
    router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return bytes(z85.decode(_made_of(secret, b"asking").public))


def ask_with_pair(dealer: zmq.Socket[bytes], secret: str) -> None:
    """Encrypt with keys made of a secret, and talk to nobody who does not know it."""
    check_curve()
    pair = _made_of(secret, b"asking")
    dealer.setsockopt(zmq.CURVE_SERVERKEY, _made_of(secret, b"answering").public.encode())
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
    dealer.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())


def _made_of(secret: str, end: bytes) -> Pair:
    made = z85.encode(hmac.digest(secret.encode(), b"zmqps channel curve " + end, "sha256"))
    return Pair(zmq.curve_public(made).decode(), made.decode())


class Gate:
    """Who may connect to a socket, and whose key each of those who have connected has shown.

    All but `_run` and what it calls is for the thread of the socket.

    Parameters
    ----------
    context
        The socket's; it has one gate.
    keys
        A node's.
    changed
        Called in the gate's thread when keys open nothing any more that did before: ask for `outdated`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, changed: Callable[[], None]) -> None:
        check_curve()
        self._path = keys.check_node()
        self._keys = keys
        self._changed = changed
        self._entries: Mapping[str, Entry] = {}  # by public key; replaced as a whole
        self._version: tuple[int, ...] = ()  # of the file
        self._due = 0.0
        self._again_at, self._trouble = math.inf, ""  # when to read a list again that could not be read, and why not
        self._throttle = Throttle("connections that were refused")
        self._keys_of: dict[Peer, str] = {}  # of those who were welcomed
        self._speaker: tuple[Peer, str] = b"", ""  # whose message is being delivered
        self._read()
        self._valid = self._valid_now()
        self._zap = context.socket(zmq.REP)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind(_ZAP)
        threading.Thread(target=self._run, name="zmqps-gate", daemon=True).start()

    def secure(self, router: zmq.Socket[bytes]) -> None:
        """Let nobody into a socket without a key of this cluster; before it is bound."""
        try:
            router.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"the keys of {self._keys.source} are damaged: {error}") from None

    # --- who speaks, in the thread of the socket --------------------------------------------------

    def passes(self, peer: Peer, name: zmq.Frame) -> bool:
        """Whether a message with this first frame is of the peer that it says: one that has joined keeps its key."""
        try:
            public = str(name.get("User-Id"))
        except zmq.ZMQError:
            return False
        before = self._keys_of.get(peer)
        if before == public:
            self._speaker = peer, public
            return True
        entry = self._entries.get(public)
        if entry is None or entry.refusal(time.time()):
            return False
        if before is not None:
            old = self._entries.get(before)
            if old is None or old.holder != entry.holder:
                return False  # it has taken the name of somebody else's connection
            self._keys_of[peer] = public  # its key was rotated
        self._speaker = peer, public
        return True

    def bind(self, peer: Peer) -> None:
        """A peer is welcomed: from now on it has the key with which it has said Hello."""
        if self._speaker[0] == peer:
            self._keys_of.setdefault(peer, self._speaker[1])

    def knows(self, peer: Peer) -> bool:
        """Whether a peer has joined with a key that it still has."""
        return peer in self._keys_of

    def forget(self, peer: Peer) -> None:
        """A peer will not come back under its name."""
        self._keys_of.pop(peer, None)

    def holder(self, peer: Peer) -> KeyHolder | None:
        """Return whose key the peer has shown whose message is being delivered."""
        public = self._speaker[1] if self._speaker[0] == peer else self._keys_of.get(peer, "")
        entry = self._entries.get(public)
        return None if entry is None else entry.holder

    def outdated(self) -> list[tuple[Peer, str, str, bool]]:
        """Return the peers whose keys open nothing any more, for whom, why, and whether they may come with a newer one.

        Those who may not are forgotten here.
        """
        now, entries = time.time(), self._entries
        renewed = {entry.holder for entry in entries.values() if not entry.refusal(now)}
        found = []
        for peer, public in list(self._keys_of.items()):
            entry = entries.get(public)
            why = "its key is not in the list any more" if entry is None else entry.refusal(now)
            returns = entry is not None and entry.revoked is None and entry.holder in renewed
            if why:
                found.append((peer, "process" if entry is None else entry.role, why, returns))
            if why and not returns:
                del self._keys_of[peer]
        return found

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                if self._zap.poll(int(1000 * WATCH_S), _POLLIN):
                    self._answer(self._zap.recv_multipart())
                if time.monotonic() >= self._due:
                    self._look()
        except zmq.ContextTerminated:
            pass
        finally:
            self._zap.close(0)

    def _answer(self, request: list[bytes]) -> None:
        """Tell ZeroMQ whether somebody may come in, and the log of who may not."""
        version, number, domain, address, _, mechanism, *credentials = request
        public = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and len(credentials[0]) == 32 else ""
        if version_of(self._path) != self._version:  # made or revoked just now
            self._look()
        entry = self._entries.get(public)
        known = entry is not None and domain == DOMAIN
        why = entry.refusal(time.time()) if entry is not None and known else "its key is none of this cluster's"
        if why:
            where = address.decode(errors="replace") or "somebody"
            line = self._throttle.admit(f"refused a connection from {where}: {why}", time.monotonic(), address)
            if line is not None:
                log.warning("%s", line)
        status = (b"400", b"unknown") if why else (b"200", b"OK")
        self._zap.send_multipart([version, number, *status, b"" if why else public.encode(), b""])

    def _look(self) -> None:
        """Read the list again if it has changed; tell of keys that open nothing any more."""
        now, before = time.monotonic(), self._valid
        self._due = now + WATCH_S
        try:
            if now >= self._again_at or version_of(self._path) != self._version:
                self._read()
        except (PSError, OSError, MemoryError) as error:  # the keys that were known go on to open, and others do not
            trouble = f"the list of keys is as it was before: {str(error) or type(error).__name__}"
            line = self._throttle.admit(trouble, now) if trouble != self._trouble else None
            if line is not None:
                log.error("%s", line)
            self._again_at, self._trouble = now + AGAIN_S, trouble
        self._valid = self._valid_now()
        if before - self._valid:
            self._changed()

    def _read(self) -> None:
        self._version = version_of(self._path)
        self._entries = {entry.public: entry for entry in read_entries(self._path)}
        self._again_at, self._trouble = math.inf, ""

    def _valid_now(self) -> set[str]:
        now = time.time()
        return {public for public, entry in self._entries.items() if not entry.refusal(now)}
