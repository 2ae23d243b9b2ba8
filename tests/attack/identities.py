"""Attackers that say they are somebody else, or speak when it is not their turn."""

from __future__ import annotations

import secrets
from collections import Counter

import numpy as np

from tests.attack.attackers import attacker
from tests.attack.stranger import Stranger, Target, Until, hello
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.messages import (
    Ack,
    Arrive,
    Assign,
    Checkpoint,
    Checkpointed,
    Commit,
    Committed,
    Departed,
    Discard,
    Discarded,
    Drain,
    Draining,
    EndJob,
    Enter,
    Error,
    Forgotten,
    Heartbeat,
    Hello,
    Init,
    Job,
    JobEnded,
    Leave,
    Left,
    Load,
    Message,
    Push,
    Range,
    Ready,
    Released,
    Scale,
    SetRates,
    Shutdown,
    Take,
    Waiting,
    Welcome,
)
from zmqps.core.protocol.security.guard import proved
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.optim import sgd

#: Seconds between two attempts of an attack that needs one only.
AGAIN_S = 0.5
WHOLE = ((0, 0, ()),)


def push(target: Target, server: int, request: int, *, seq: int | None = None, value: float = 1000.0) -> Push:
    """Return a push to the first slice of a server, of a size that shows."""
    size = target.slices[server].get(0, 1)
    values = (np.full(size, value, "<f4"),)
    seq = request if seq is None else seq
    return Push(request, seq, target.epoch_at(server), 0, 0, 1, 0, 1, "raw", "raw", (), ((0, 0, ()),), values)


def answered(answer: Message | None) -> str:
    """Return what an answer is, for the counts."""
    return f"Error {answer.code}" if isinstance(answer, Error) else type(answer).__name__


@attacker
def stolen_server(target: Target, until: Until, counts: Counter[str]) -> None:
    """Hello as a server, with the incarnation that the server tells everybody, and Leave: three messages."""
    while until:
        for incarnation in target.incarnations:
            with Stranger(target.coordinator) as stranger:
                answer = stranger.ask(hello("server", incarnation, ""), Welcome, Error, attempts=2)
                counts[f"hello: {answered(answer)}"] += 1
                counts[f"leave: {answered(stranger.ask(Leave('closed'), Left, Error, attempts=2))}"] += 1
            if not until.pause(AGAIN_S):
                return


@attacker
def stolen_worker(target: Target, until: Until, counts: Counter[str]) -> None:
    """Hello as an honest worker, with its incarnation, to the coordinator; then Leave."""
    while until.pause(AGAIN_S):
        for incarnation in target.insider:
            with Stranger(target.coordinator) as stranger:
                answer = stranger.ask(hello("worker", incarnation), Welcome, Error, attempts=2)
                counts[f"hello: {answered(answer)}"] += 1
                counts[f"leave: {answered(stranger.ask(Leave('finished'), Left, Error, attempts=2))}"] += 1


@attacker
def routing_id(target: Target, until: Until, counts: Counter[str]) -> None:
    """Connect under the routing ids of servers and workers, z and the incarnation, and keep the connection."""
    places = [(target.coordinator, who) for who in (*target.incarnations, *target.insider)]
    places += [(server, who) for server in target.servers for who in target.insider]
    open_ones = [Stranger(endpoint, b"z" + who) for endpoint, who in places]
    counts["connections"] = len(open_ones)
    while until.pause(0.05):
        for stranger in open_ones:
            counts["received"] += stranger.drain()
            counts["sent"] += stranger.send(Leave("closed"))


@attacker
def replayed_push(target: Target, until: Until, counts: Counter[str]) -> None:
    """Hello to the servers with a worker's incarnation, Leave, Hello, and a push with a number that it used."""
    while until.pause(0.02):
        for server, endpoint in enumerate(target.servers):
            for incarnation in target.insider:
                with Stranger(endpoint) as stranger:
                    counts[answered(stranger.ask(hello("worker", incarnation), Welcome, Error, attempts=2))] += 1
                    stranger.ask(Leave("closed"), Left, Error, attempts=2)
                    stranger.ask(hello("worker", incarnation), Welcome, Error, attempts=2)
                    answer = stranger.ask(push(target, server, 1), Ack, Error, attempts=2)
                    counts[f"push: {answered(answer)}"] += 1


@attacker
def double_connection(target: Target, until: Until, counts: Counter[str]) -> None:
    """Be a second connection of each worker at each server, which pushes and says goodbye."""
    while until.pause(0.1):
        for server, endpoint in enumerate(target.servers):
            for incarnation in target.insider:
                with Stranger(endpoint) as stranger:
                    counts[answered(stranger.ask(hello("worker", incarnation), Welcome, Error, attempts=2))] += 1
                    answer = stranger.ask(push(target, server, 1, seq=1 << 40), Ack, Error, attempts=2)
                    counts[f"push: {answered(answer)}"] += 1
                    answer = stranger.ask(Leave("closed"), Left, Error, attempts=2)
                    counts[f"leave: {answered(answer)}"] += 1


@attacker
def stray_push(target: Target, until: Until, counts: Counter[str]) -> None:
    """Say hello to the servers only, as a worker the coordinator does not know, and push and load."""
    while until.pause(0.1):
        for server, endpoint in enumerate(target.servers):
            with Stranger(endpoint) as stranger:
                stranger.ask(hello("worker", secrets.token_bytes(16)), Welcome, Error, attempts=2)
                size = target.slices[server].get(0, 1)
                load = Load(1, target.epoch_at(server), ((0, 0, ()),), (np.full(size, 5, "<f4"),))
                counts[f"load: {answered(stranger.ask(load, Ack, Error, attempts=2))}"] += 1
                answer = stranger.ask(push(target, server, 2), Ack, Error, attempts=2)
                counts[f"push: {answered(answer)}"] += 1


@attacker
def early(target: Target, until: Until, counts: Counter[str]) -> None:
    """Before anybody has begun a job: be a worker, define the job, load its values, be a server, push."""
    job = JobSpec(
        parameters=(Parameter("shared", (3,), "float32"),), optimizer=sgd(1.0).to_wire(), mode="async"
    ).to_wire()
    ones = (np.ones(3, "<f4"),)
    to_server = [Load(2, 1, WHOLE, ones), Push(3, 1, 1, 0, 0, 1, 0, 1, "raw", "raw", (), WHOLE, ones)]
    while until.pause(0.05):
        for role in ("worker", "server"):
            with Stranger(target.coordinator) as stranger:
                said = hello(role, secrets.token_bytes(16), "" if role == "server" else "default")
                counts[f"{role}: {answered(stranger.ask(said, Welcome, Error, attempts=2))}"] += 1
                counts[f"init: {answered(stranger.ask(Init(1, job), Job, Error, attempts=2))}"] += 1
        for endpoint in target.servers:
            with Stranger(endpoint) as stranger:
                said = hello("worker", secrets.token_bytes(16), epoch=1)
                counts[f"hello: {answered(stranger.ask(said, Welcome, Error, attempts=2))}"] += 1
                for message in to_server:
                    counts[f"data: {answered(stranger.ask(message, Ack, Error, attempts=2))}"] += 1


@attacker
def first_comer(target: Target, until: Until, counts: Counter[str]) -> None:
    """Come before the first worker and stay: say what job it is, load its values, enter a barrier, take a range."""
    job = JobSpec(
        parameters=(Parameter("shared", (3,), "float32"),), optimizer=sgd(1.0).to_wire(), mode="async"
    ).to_wire()
    incarnation = secrets.token_bytes(16)
    with Stranger(target.coordinator) as stranger:
        said = hello("worker", incarnation)
        welcome = stranger.ask(said, Welcome, Error)
        counts[answered(welcome)] += 1
        stranger.send(Init(1, job))
        rest = (Enter(2, "start"), Take(3, "data", 100, 10, 1, b"", ()))
        while until.pause(0.1):
            stranger.send(Heartbeat({}))
            while (answer := stranger.receive(0.0)) is not None:
                counts[answered(answer)] += 1
                # one that was welcomed and whose job is not this one would count if it went on: without a secret it may
                if isinstance(answer, Job) or not isinstance(welcome, Welcome):
                    for message in rest:
                        stranger.send(message)
                    rest = ()
                for server in answer.placement["servers"] if isinstance(answer, Job) else ():
                    with Stranger(server["endpoint"].split()[0]) as other:
                        ticket = bytes.fromhex(server["ticket"])
                        other.ask(hello("worker", incarnation, secret=ticket, epoch=server["epoch"]), Welcome, Error)
                        load = Load(1, server["epoch"], WHOLE, (np.full(3, 1000, "<f4"),))
                        counts[f"load: {answered(other.ask(load, Ack, Error, attempts=2))}"] += 1


@attacker
def forged_coordinator(target: Target, until: Until, counts: Counter[str]) -> None:
    """Tell servers what only the coordinator may: Commit, Assign, Discard, Departed, Shutdown."""
    who = [*target.insider, *target.incarnations]
    forged: list[Message] = [
        Commit(target.epoch, 0, tuple((incarnation, (0,)) for incarnation in who)),
        Assign(target.epoch + 1, "default", 1, 1, 0, {}, {}, bytes(16)),
        Discard(target.epoch),
        *(Departed(incarnation, 1) for incarnation in who),
        Shutdown("by a stranger"),
    ]
    while until:
        for endpoint in target.servers:
            with Stranger(endpoint, b"coordinator") as stranger:
                stranger.ask(hello("worker", secrets.token_bytes(16)), Welcome, Error, attempts=2)
                for message in forged:
                    stranger.send(message)
                while (answer := stranger.receive(0.1)) is not None:
                    counts[answered(answer)] += 1
        until.pause(0.05)


@attacker
def forged_server(target: Target, until: Until, counts: Counter[str]) -> None:
    """Join the coordinator as a server too many or say as a worker what servers say: Ready, Committed, …"""
    forged: list[Message] = [Ready(target.epoch, 1), Committed(target.epoch, 1 << 40), Discarded(target.epoch)]
    forged += [Forgotten(incarnation) for incarnation in target.incarnations]
    while until.pause(0.05):
        for role in ("server", "observer"):
            with Stranger(target.coordinator) as stranger:
                said = hello(role, secrets.token_bytes(16), "" if role == "server" else "default")
                counts[f"{role}: {answered(stranger.ask(said, Welcome, Error, attempts=2))}"] += 1
                for message in forged:
                    stranger.send(message)
                while (answer := stranger.receive(0.1)) is not None:
                    counts[answered(answer)] += 1
                stranger.ask(Leave("closed"), Left, Error, attempts=2)


@attacker
def job_ender(target: Target, until: Until, counts: Counter[str]) -> None:
    """Ask for the end of the job, as nobody and as an observer, with no proof and with one of a secret of its own."""
    own = secrets.token_bytes(KEY_NBYTES)
    while until.pause(0.1):
        with Stranger(target.coordinator) as stranger:
            for _ in range(2):
                for guard in (b"", own, proved(own, EndJob(1, "default", own)).guard):
                    answer = stranger.ask(EndJob(1, "default", own, guard), JobEnded, Error, attempts=2)
                    counts[answered(answer)] += 1
                stranger.ask(hello("observer", secrets.token_bytes(16)), Welcome, Error, attempts=2)


@attacker
def orders(target: Target, until: Until, counts: Counter[str]) -> None:
    """Join as an observer, and save, begin, end, train, drain and scale; where there are keys, with its key."""
    own = secrets.token_bytes(KEY_NBYTES)
    job = JobSpec(
        parameters=(Parameter("shared", (1 << 20,), "float32"),), optimizer=sgd(1.0).to_wire(), mode="async"
    ).to_wire()
    asked: list[Message] = [
        Checkpoint(1, "", 0, {"planted": 1}),
        proved(own, Checkpoint(2, "default", 0, {"planted": 1}, own)),
        Init(3, job),
        proved(own, EndJob(4, "default", own)),
        EndJob(5, "", own),
        Drain(6, "server-0", 0, own),
        Scale(7, 1, own),
        Arrive(8, 0, (1,)),
        Enter(9, "mine"),
        Take(10, "data", 1 << 20, 1, 1, (), ()),
        SetRates(11, 0, ()),
    ]
    while until.pause(0.02):
        for joins in (True, False):
            with Stranger(target.coordinator) as stranger:
                if joins:
                    stranger.ask(hello("observer", secrets.token_bytes(16)), Welcome, Error, attempts=2)
                for message in asked:
                    answer = stranger.ask(message, Checkpointed, Job, JobEnded, Draining, Released, Error, attempts=1)
                    counts[f"{type(message).__name__}: {answered(answer)}"] += 1
                stranger.ask(Leave("closed"), Left, Error, attempts=1)
        for server, endpoint in enumerate(target.servers):
            with Stranger(endpoint) as stranger:
                stranger.ask(target.member.hello(server), Welcome, Error, attempts=2)
                counts[f"push: {answered(stranger.ask(push(target, server, 12), Ack, Error, attempts=1))}"] += 1


@attacker
def idle_workers(target: Target, until: Until, counts: Counter[str]) -> None:
    """Join the job as workers, take it as it is, and do nothing."""
    strangers = [Stranger(target.coordinator) for _ in range(3)]
    for stranger in strangers:
        counts[answered(stranger.ask(hello("worker", secrets.token_bytes(16)), Welcome, Error))] += 1
        stranger.send(Init(1, {}))
    while until.pause(0.2):
        for stranger in strangers:
            stranger.drain()
            counts["beats"] += stranger.send(Heartbeat({}))


@attacker
def uninvited_workers(target: Target, until: Until, counts: Counter[str]) -> None:
    """Join the job, name it or not, complete a step, enter a barrier or take a range, and beat, to be awaited."""
    asked = (Arrive(8, 0, ()), Enter(8, "mine"), Take(8, "data", 1 << 20, 1, 1, (), ()))
    strangers = []
    for number in range(12):
        stranger = Stranger(target.coordinator)
        strangers.append(stranger)
        said = hello("worker", secrets.token_bytes(16), name=f"uninvited-{number}")
        counts[answered(stranger.ask(said, Welcome, Error, attempts=2))] += 1
        if number % 4:
            answer = stranger.ask(Init(1, {}), Job, Error, attempts=2)
            if number % 4 > 1 and isinstance(answer, Job):
                counts[f"named: {answered(stranger.ask(Init(2, answer.job), Job, Error, attempts=2))}"] += 1
        if number % 4 < 3:
            counts[
                f"asked: {answered(stranger.ask(asked[number % 3], Released, Range, Waiting, Error, attempts=2))}"
            ] += 1
    while until.pause(0.2):
        for stranger in strangers:
            counts["beats"] += stranger.send(Heartbeat({}))
            while (answer := stranger.receive(0.0)) is not None:
                counts[answered(answer)] += 1


@attacker
def finishing_workers(target: Target, until: Until, counts: Counter[str]) -> None:
    """Join the job as workers, take it, and finish: again and again."""
    while until.pause(0.02):
        with Stranger(target.coordinator) as stranger:
            said: Hello = hello("worker", secrets.token_bytes(16), name=f"f{counts['joined']}")
            stranger.ask(said, Welcome, Error, attempts=2)
            stranger.send(Init(1, {}))
            stranger.receive(0.2)
            counts[answered(stranger.ask(Leave("finished"), Left, Error, attempts=2))] += 1
            counts["joined"] += 1
