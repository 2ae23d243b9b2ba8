"""Attackers that fill what a node keeps: queues, tables, waits, memory."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter

import numpy as np

from tests.attack.attackers import attacker
from tests.attack.identities import answered
from tests.attack.raw import RawPeer, frame
from tests.attack.stranger import Stranger, Target, Until, hello
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.messages import (
    Enter,
    Error,
    Heartbeat,
    Init,
    Job,
    Leave,
    Left,
    Pull,
    Push,
    StatusRequest,
    Take,
    Values,
    Welcome,
)
from zmqps.core.protocol.typed import pack
from zmqps.optim import sgd

#: A version that no training reaches.
NEVER = 1 << 40


@attacker
def parked_pulls(target: Target, until: Until, counts: Counter[str]) -> None:
    """Ask the first server for a version that never comes, 65,536 times, then leave without a word."""
    while until:
        with Stranger(target.servers[0]) as stranger:
            counts[answered(stranger.ask(target.member.hello(0), Welcome, Error))] += 1
            for request in range(1, (1 << 16) + 100):
                if not until or not stranger.send(Pull(request, target.epoch, NEVER, 0, "raw", ((0, 0, ()),))):
                    break
                counts["pulls"] += 1
                counts["answers"] += stranger.drain() if request % 256 == 0 else 0
            until.pause(0.5)


@attacker
def random_hellos(target: Target, until: Until, counts: Counter[str]) -> None:
    """Say hello with a new incarnation each time, on one connection to each server."""
    strangers = [Stranger(endpoint) for endpoint in target.servers]
    while until:
        for stranger in strangers:
            counts["hellos"] += stranger.send(hello("worker", secrets.token_bytes(16)))
            counts["answers"] += stranger.drain() if counts["hellos"] % 64 < 2 else 0


@attacker
def reader(target: Target, until: Until, counts: Counter[str]) -> None:
    """Pull whole shards over TCP and read the answers: no attack, but a warm-up, and what to compare others with."""
    plain = () if "ZMQPS_TOKEN" in os.environ else (target.coordinator, *target.servers)  # else nobody takes it
    for endpoint in plain:  # malloc keeps what was freed once (zmqps/net/system/memory.py)
        with contextlib.suppress(OSError), RawPeer(endpoint).shake_hands() as peer:
            peer.send(frame(bytes(8 << 20)))
    strangers = [Stranger(endpoint) for endpoint in target.servers]
    while until:
        for rank, stranger in enumerate(strangers):
            stranger.ask(target.member.hello(rank), Welcome, Error)
            part = tuple((index, 0, ()) for index in target.slices[rank])
            for request in range(1, 11):
                counts["pulls"] += (
                    stranger.ask(Pull(request, target.epoch_at(rank), 0, 0, "raw", part), Values) is not None
                )
        until.pause(0.05)


@attacker
def deaf_puller(target: Target, until: Until, counts: Counter[str]) -> None:
    """Pull whole shards and never read the answers."""
    parts = [tuple((index, 0, ()) for index in slices) for slices in target.slices]
    strangers = [Stranger(endpoint, deaf=True) for endpoint in target.servers]
    for rank, stranger in enumerate(strangers):
        stranger.send(target.member.hello(rank))
    while until:
        sent = 0
        for rank, (stranger, part) in enumerate(zip(strangers, parts, strict=True)):
            sent += stranger.send(Pull(counts["pulls"] + 1, target.epoch_at(rank), 0, 0, "raw", part))
            counts["pulls"] += 1
        until.pause(0.001 if sent else 0.1)


@attacker
def staged_gradients(target: Target, until: Until, counts: Counter[str]) -> None:
    """Push gradients of the open step under invented incarnations, which no coordinator knows."""
    strangers = [Stranger(endpoint) for endpoint in target.servers]
    whole = [tuple((index, 0, ()) for index in slices) for slices in target.slices]
    arrays = [tuple(np.full(size, 1000, "<f4") for size in slices.values()) for slices in target.slices]
    while until:
        incarnation = secrets.token_bytes(16)
        for i, stranger in enumerate(strangers):
            stranger.send(hello("worker", incarnation))
            for step in (0, 1 << 20):
                message = Push(1, 1, target.epoch_at(i), step, 1, 1, 0, 1, "raw", "raw", (), whole[i], arrays[i])
                counts["pushes"] += stranger.send(message)
            while (answer := stranger.receive(0.0)) is not None:
                counts[answered(answer)] += 1


@attacker
def barriers(target: Target, until: Until, counts: Counter[str]) -> None:
    """Wait at 1,024 barriers of invented names, and enter them again and again."""
    with Stranger(target.coordinator) as stranger:
        counts[answered(stranger.ask(hello("worker", secrets.token_bytes(16)), Welcome, Error))] += 1
        request = 0
        while until:
            for i in range(1024):
                request += 1
                if not until or not stranger.send(Enter(request, f"barrier {i} " + "x" * 200)):
                    break
                counts["entered"] += 1
                if i % 64 == 0:
                    counts["answers"] += stranger.drain()


@attacker
def joiners(target: Target, until: Until, counts: Counter[str]) -> None:
    """Join as many members as one connection each allows, two hundred at a time, and vanish."""
    while until:
        strangers = [Stranger(target.coordinator) for _ in range(40)]
        for stranger in strangers:
            stranger.send(hello("worker", secrets.token_bytes(16), name="j" * 255))
        until.pause(0.3)
        for stranger in strangers:
            counts["answers"] += stranger.drain()
            stranger.close()


@attacker
def coming_and_going(target: Target, until: Until, counts: Counter[str]) -> None:
    """Join and leave on one connection as fast as it goes, with the longest name."""
    with Stranger(target.coordinator) as stranger:
        while until:
            stranger.send(hello("observer", secrets.token_bytes(16), name="n" * 255))
            counts["joined"] += stranger.send(Leave("closed"))
            if counts["joined"] % 64 == 0:
                counts["answers"] += stranger.drain()


@attacker
def counters(target: Target, until: Until, counts: Counter[str]) -> None:
    """Beat with 64 counters of 200 characters under names of 4,000, as 300 members with long names."""
    strangers = [Stranger(target.coordinator) for _ in range(300)]
    for i, stranger in enumerate(strangers):
        stranger.send(hello("observer", secrets.token_bytes(16), name=f"{i}" + "c" * 250))
    facts = {f"{i}" + "k" * 60: "v" * 200 for i in range(64)}
    while until.pause(0.2):
        for stranger in strangers:
            counts["beats"] += stranger.send(Heartbeat({**facts, "bytes_sent": "x", "jobs": {"1": facts}}))
            counts["answers"] += stranger.drain()


@attacker
def status_requests(target: Target, until: Until, counts: Counter[str]) -> None:
    """Ask for the status as fast as it goes, and never read it."""
    with Stranger(target.coordinator, deaf=True) as stranger:
        while until:
            counts["asked"] += stranger.send(StatusRequest(counts["asked"] + 1))


@attacker
def data_sets(target: Target, until: Until, counts: Counter[str]) -> None:
    """Take ranges of 1,024 invented data sets, as large as it goes or used up at once, and leave, again and again."""
    while until:
        with Stranger(target.coordinator) as stranger:
            stranger.ask(hello("worker", secrets.token_bytes(16)), Welcome, Error)
            job = stranger.ask(Init(1, {}), Job, Error)
            if isinstance(job, Job) and counts["left"] % 2:  # as one of those whom the job is for
                stranger.ask(Init(2, job.job), Job, Error)
            for number in range(1024):
                name = f"data {number} ".ljust(200, "x")
                large, small = (1 << 40, 1, 1 << 30), (1, 1, 1)
                for done in ((), (0, 0)):
                    request = 3 + 2 * number + len(done) // 2
                    stranger.send(Take(request, name, *(small if number % 2 else large), (), done))
                    counts["asked"] += 1
                if number % 16 == 0:
                    while (answer := stranger.receive(0.0)) is not None:
                        counts[answered(answer)] += 1
                if not until:
                    break
            stranger.ask(Leave("closed"), Left, Error, attempts=2)
            counts["left"] += 1
        until.pause(0.05)


@attacker
def hostile_sizes(target: Target, until: Until, counts: Counter[str]) -> None:
    """Name jobs of impossible sizes, by a few bytes and by a few megabytes, as workers and as an observer."""
    largest = (1 << 64) - 1
    shapes = ([1 << 41], [1 << 44], [1 << 47], [0, largest], [largest] * 32)
    specs = [[["w", shape, "float32"]] for shape in shapes]
    specs += [[[f"p{i}", [1 << 41], "float64"] for i in range(number)] for number in (7, 1000, 20_000)]
    specs += [[[f"{i:07d}", [], "float32"] for i in range(60_000)], [["w", [8], "float32"]] * 60_000]
    plain = JobSpec(parameters=(Parameter("w", (8,), "float32"),), optimizer=sgd(0.1).to_wire(), mode="async").to_wire()
    jobs = [{**plain, "parameters": parameters} for parameters in specs]
    jobs += [{**plain, "optimizer": {"name": "sgd", "x": [0] * (1 << 20)}}, {f"{i:06x}": 0 for i in range(60_000)}]
    inits = [pack([Init.kind, 1, job]) for job in jobs]
    beats = [pack([Heartbeat.kind, {"jobs": {f"{i:06x}": 0 for i in range(number)}}]) for number in (5000, 60_000)]
    while until:
        for role in ("worker", "worker", "observer"):
            with Stranger(target.coordinator) as stranger:
                name = secrets.token_hex(8)
                stranger.ask(hello(role, secrets.token_bytes(16), name), Welcome, Error)
                for frame_ in (*inits, *beats):
                    counts["sent"] += stranger.send_frames([frame_])
                    counts["answers"] += stranger.drain()
                    if not until.pause(0.05):
                        return
                stranger.ask(Leave("closed"), Left, Error, attempts=2)
