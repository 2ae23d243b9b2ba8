"""Attackers below the messages: frames, handshakes, connections, bytes."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Callable

import msgpack

from tests.attack.attackers import attacker
from tests.attack.raw import GREETING, MORE, NULL, RawPeer, connect, frame, ready
from tests.attack.stranger import Target, Until
from zmqps.core.protocol.messages import Pull
from zmqps.core.protocol.wire import encode

#: What a node that is full, or has closed the door, does to us.
SHUT = (OSError, AssertionError, ValueError, IndexError)


def everywhere(target: Target) -> list[str]:
    """Return all the doors there are."""
    return [target.coordinator, *target.servers]


def greeted(target: Target) -> RawPeer:
    """Return a connection to the first server on which a member has said hello."""
    peer = RawPeer(target.servers[0]).shake_hands()
    peer.send(frame(bytes(encode(target.member.hello(0))[0])))
    return peer


def repeat(meet: Callable[[], RawPeer], speech: bytes, until: Until, counts: Counter[str], what: str) -> None:
    """Say the same over one connection after the other, over each until it is closed; count how often, as ``what``."""
    while until:
        with contextlib.suppress(*SHUT), meet() as peer:
            while until:
                peer.send(speech)
                counts[what] += 1
        counts["connections"] += 1
        until.pause(0.05)


@attacker
def empty_frames(target: Target, until: Until, counts: Counter[str]) -> None:
    """Send one message of 4,000,000 empty frames to a server, 8 MB, then the next, each on a connection of its own."""
    body = bytes([MORE, 0]) * 4_000_000 + bytes([0, 0])
    while until:
        with contextlib.suppress(*SHUT), RawPeer(target.servers[0], 60.0).shake_hands() as peer:
            peer.send(body)
            counts["messages"] += 1
            until.pause(0.2)
        counts["connections"] += 1
        until.pause(0.05)


@attacker
def empty_maps(target: Target, until: Until, counts: Counter[str]) -> None:
    """Send headers of 8 MiB that hold nothing but empty maps."""
    size = 8 << 20
    body = frame(b"\xdd" + (size - 16).to_bytes(4, "big") + b"\x80" * (size - 16))
    repeat(lambda: RawPeer(target.servers[0], 60.0).shake_hands(), body, until, counts, "headers")


@attacker
def unended_message(target: Target, until: Until, counts: Counter[str]) -> None:
    """Send a message that never ends: frames of 64 KiB, each with more to follow."""
    body = frame(bytes(64 << 10), more=True)
    repeat(lambda: RawPeer(target.servers[0]).shake_hands(), body, until, counts, "frames")


@attacker
def unended_by_member(target: Target, until: Until, counts: Counter[str]) -> None:
    """The same after a Hello, in frames of 4 MiB."""
    body = frame(bytes(4 << 20), more=True)

    def answered() -> RawPeer:
        peer = greeted(target)
        peer.receive()
        return peer

    repeat(answered, body, until, counts, "frames")


@attacker
def half_sent(target: Target, until: Until, counts: Counter[str]) -> None:
    """Send all but the last byte of a frame of 64 MiB on each of 40 connections, and keep them."""
    peers: list[RawPeer] = []
    piece = bytes(1 << 20)
    for _ in range(40):
        with contextlib.suppress(*SHUT):
            peer = RawPeer(target.servers[0]).shake_hands()
            peers.append(peer)
            peer.send(frame(b"", size=64 << 20))
            for _ in range(63):
                if not until:
                    break
                peer.send(piece)
                counts["MiB"] += 1
    while until.pause(0.2):
        pass
    counts["connections"] = len(peers)
    counts["still open"] = sum(not peer.is_closed() for peer in peers)


@attacker
def half_sent_by_members(target: Target, until: Until, counts: Counter[str]) -> None:
    """The same after a Hello, on four connections: what a member may send is more."""
    peers: list[RawPeer] = []
    for _ in range(4):
        with contextlib.suppress(*SHUT):
            peer = greeted(target)
            peers.append(peer)
            peer.send(frame(b"", size=64 << 20))
            for _ in range(63):
                peer.send(bytes(1 << 20))
                counts["MiB"] += 1
    while until.pause(0.2):
        pass
    counts["still open"] = sum(not peer.is_closed() for peer in peers)


@attacker
def slow_handshakes(target: Target, until: Until, counts: Counter[str]) -> None:
    """Open 200 connections to each node and say the handshake a byte at a time."""
    speech = NULL + ready()
    open_ones: list[socket.socket] = []
    for endpoint in everywhere(target):
        for _ in range(200):
            with contextlib.suppress(*SHUT):
                open_ones.append(connect(endpoint))
    at = 0
    while until.pause(0.5):
        for plain in open_ones:
            with contextlib.suppress(*SHUT):
                plain.sendall(speech[at : at + 1])
        at = min(at + 1, len(speech) - 1)
    counts["connections"] = len(open_ones)


@attacker
def connection_flood(target: Target, until: Until, counts: Counter[str]) -> None:
    """Connect and vanish, as fast as it goes."""
    places = everywhere(target) + list(target.local)
    while until:
        for endpoint in places:
            with contextlib.suppress(*SHUT):
                connect(endpoint).close()
                counts["connections"] += 1


@attacker
def kept_connections(target: Target, until: Until, counts: Counter[str]) -> None:
    """Open 2,000 connections whose handshake is over, and say nothing."""
    peers: list[RawPeer] = []
    while until:
        if len(peers) < 2000:
            with contextlib.suppress(*SHUT):
                peers.append(RawPeer(everywhere(target)[len(peers) % (1 + len(target.servers))]).shake_hands())
                counts["connections"] += 1
        else:
            until.pause(0.2)


@attacker
def garbage(target: Target, until: Until, counts: Counter[str]) -> None:
    """Send bytes that mean nothing, before, in and after the handshake."""
    rng = random.Random(0)
    places = everywhere(target) + list(target.local)
    while until:
        for endpoint in places:
            speech = (b"", GREETING, NULL, NULL + ready())[rng.randrange(4)] + rng.randbytes(rng.randrange(2000))
            with contextlib.suppress(*SHUT), contextlib.closing(connect(endpoint)) as plain:
                plain.sendall(speech)
                counts["speeches"] += 1


@attacker
def tiny_messages(target: Target, until: Until, counts: Counter[str]) -> None:
    """Send messages of one byte as fast as it goes and read no answer."""
    body = frame(b"\xc0") * 4096
    places = everywhere(target)
    peers: list[RawPeer | None] = [None] * len(places)
    while until:
        for i, endpoint in enumerate(places):
            try:
                peer = peers[i] = peers[i] or RawPeer(endpoint).shake_hands()
                peer.socket.settimeout(0.2)
                peer.send(body)
                counts["messages"] += 4096
            except SHUT:
                counts["refused"] += 1
                if (peer := peers[i]) is not None:
                    peer.close()
                peers[i] = None
        until.pause(0.001)


@attacker
def many_parts(target: Target, until: Until, counts: Counter[str]) -> None:
    """Pull the same slice hundred thousand times in one message, as an observer."""
    parts = [[0, 0, []]] * 100_000
    fields = encode(Pull(1, target.epoch, 0, 0, "raw", ()))[0]
    header = msgpack.packb([*msgpack.unpackb(fields)[:-1], parts])
    while until:
        with contextlib.suppress(*SHUT), greeted(target) as peer:
            peer.receive()
            while until:
                peer.send(frame(header))
                counts["messages"] += 1
                peer.receive()
        until.pause(0.05)
