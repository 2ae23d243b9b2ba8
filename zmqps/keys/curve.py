"""CURVE: the encryption of connections, and which keys may open them (ZeroMQ's ZAP).

Without a handler libzmq accepts *any* key, so a node with keys always has one, in a separate thread: a handshake does
not wait for a shard that computes. The same thread checks twice a second whether the list of keys has changed. libzmq
keeps a connection whose key was revoked meanwhile, so `Gate` also says which peers are no longer allowed.
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
from zmqps.keys.keyring import Entry, Keys, Pair, read_entries, version_of

#: Seconds between two checks of the list of keys: a revoked one is refused within a second.
WATCH_S = 0.5
#: After this many seconds an unreadable list is read again, changed or not: descriptors may have been short.
AGAIN_S = 5.0
#: A connection whose key was revoked is kept this much longer, to send its end.
LAST_WORD_S = 0.1
#: After this many seconds a peer that took another connection's name has been shut.
CONTESTED_S, TAKEN = 1.0, "another peer has taken its name"
#: The ZAP domain: ZeroMQ asks the socket's handler, and refuses all connections without one.
DOMAIN = b"zmqps"
_ZAP = "inproc://zeromq.zap.01"
_POLLIN = int(zmq.POLLIN)

log = logging.getLogger("zmqps.keys")


def check_curve() -> None:
    """Raise `ConfigurationError` if ZeroMQ was built without encryption."""
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
    """Make a socket show a pair of keys, and connect only to nodes of this cluster; before it connects.

    Raises
    ------
    ConfigurationError
        These keys are for another role, or damaged.
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
    """Encrypt with keys derived from a shared secret; return the key that the other end must show."""
    check_curve()
    router.setsockopt(zmq.CURVE_SERVER, 1)
    router.setsockopt(zmq.CURVE_SECRETKEY, _made_of(secret, b"answering").secret.encode())
    router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return bytes(z85.decode(_made_of(secret, b"asking").public))


def ask_with_pair(dealer: zmq.Socket[bytes], secret: str) -> None:
    """Encrypt with keys derived from a secret, and connect only to a peer that knows it."""
    check_curve()
    pair = _made_of(secret, b"asking")
    dealer.setsockopt(zmq.CURVE_SERVERKEY, _made_of(secret, b"answering").public.encode())
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
    dealer.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())


def _made_of(secret: str, end: bytes) -> Pair:
    made = z85.encode(hmac.digest(secret.encode(), b"zmqps channel curve " + end, "sha256"))
    return Pair(zmq.curve_public(made).decode(), made.decode())


class Gate:
    """Which peers may connect to a socket, and the key that each of them has shown.

    All except `_run` and what it calls is for the thread of the socket.

    Parameters
    ----------
    context
        The socket's context; it has one gate.
    keys
        A node's.
    changed
        Called in the gate's thread when keys are no longer valid: call `outdated` then.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, changed: Callable[[], None]) -> None:
        check_curve()
        self._path = keys.check_node()
        self._keys = keys
        self._changed = changed
        self._entries: Mapping[str, Entry] = {}  # by public key; replaced as a whole
        self._version: tuple[int, ...] = ()  # of the file; a change is noticed by it
        self._due = 0.0
        self._again_at, self._trouble = math.inf, ""  # when to retry an unreadable list, and why it was
        self._throttle = Throttle("connections that were refused")
        self._keys_of: dict[Peer, str] = {}  # of welcomed peers
        self._speaker: tuple[Peer, str] = b"", ""  # the sender of the message being delivered
        self._read()
        self._valid = self._valid_now()
        self._zap = context.socket(zmq.REP)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind(_ZAP)
        threading.Thread(target=self._run, name="zmqps-gate", daemon=True).start()

    def secure(self, router: zmq.Socket[bytes]) -> None:
        """Make a socket accept only keys of this cluster; before it is bound."""
        try:
            router.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"the keys of {self._keys.source} are damaged: {error}") from None

    # --- identities, in the thread of the socket --------------------------------------------------

    def passes(self, peer: Peer, name: zmq.Frame) -> bool:
        """Whether a message with this first frame is from the peer it names: a member keeps its key."""
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
                return False  # it has taken the name of another connection
            self._keys_of[peer] = public  # its key was rotated
        self._speaker = peer, public
        return True

    def bind(self, peer: Peer) -> None:
        """Welcome a peer: from now on it has the key of its Hello."""
        if self._speaker[0] == peer:
            self._keys_of.setdefault(peer, self._speaker[1])

    def knows(self, peer: Peer) -> bool:
        """Whether a peer has joined with a key that is still valid."""
        return peer in self._keys_of

    def forget(self, peer: Peer) -> None:
        """Forget a peer that will not come back under its name."""
        self._keys_of.pop(peer, None)

    def holder(self, peer: Peer) -> KeyHolder | None:
        """Return the key of the sender of the message being delivered."""
        public = self._speaker[1] if self._speaker[0] == peer else self._keys_of.get(peer, "")
        entry = self._entries.get(public)
        return None if entry is None else entry.holder

    def outdated(self) -> list[tuple[Peer, str, str, bool]]:
        """Return peers with invalid keys, their role, the reason, and whether they may come back with a newer key.

        Peers that may not are forgotten here.
        """
        now, entries = time.time(), self._entries
        renewed = {entry.holder for entry in entries.values() if not entry.refusal(now)}
        found = []
        for peer, public in list(self._keys_of.items()):
            entry = entries.get(public)
            why = "its key is no longer in the list" if entry is None else entry.refusal(now)
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
        """Answer ZeroMQ whether a peer may connect, and log refusals."""
        version, number, domain, address, _, mechanism, *credentials = request
        public = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and len(credentials[0]) == 32 else ""
        if version_of(self._path) != self._version:  # a key was just made or revoked
            self._look()
        entry = self._entries.get(public)
        known = entry is not None and domain == DOMAIN
        why = entry.refusal(time.time()) if entry is not None and known else "its key is not of this cluster"
        if why:
            where = address.decode(errors="replace") or "somebody"
            line = self._throttle.admit(f"refused a connection from {where}: {why}", time.monotonic(), address)
            if line is not None:
                log.warning("%s", line)
        status = (b"400", b"unknown") if why else (b"200", b"OK")
        self._zap.send_multipart([version, number, *status, b"" if why else public.encode(), b""])

    def _look(self) -> None:
        """Read the list again if it has changed; report keys that are no longer valid."""
        now, before = time.monotonic(), self._valid
        self._due = now + WATCH_S
        try:
            if now >= self._again_at or version_of(self._path) != self._version:
                self._read()
        except (PSError, OSError, MemoryError) as error:  # the known keys stay valid, and others are refused
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
