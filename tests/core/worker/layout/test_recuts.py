"""Shards that are cut anew while a worker trains: what it has begun begins anew, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.core.machines import job, resolved, sent
from tests.core.worker.test_session import S0, S1, WELCOME, Session
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.protocol.events import COORDINATOR, Action
from zmqps.core.protocol.messages import Ack, Followed, Hello, Push, Recut
from zmqps.core.worker.operations import StartJob

KEYS = {"ticket": (b"t" * 16).hex(), "proof": (b"p" * 16).hex()}


def lies(spec: Any, cut: int, shards: int) -> dict[str, Any]:
    """Return where a job lies since it was cut last."""
    rows = [
        {"name": f"s{n}", "endpoint": f"tcp://s{n}:1", "rank": n, "epoch": 10 * cut + n, **KEYS} for n in range(shards)
    ]
    cuts = Placement.balance(KeySpace(spec.parameters), shards, 32).to_wire()
    return {**cuts, "cut": cut, "servers": rows}


def begun(cut: int) -> Session:
    """Return a worker that was told a job that was cut before."""
    session = Session(job("a", "b"))
    session.get(WELCOME)
    init = StartJob(0.0, job=session.spec, values=[np.zeros(p.size, np.float32) for p in session.spec.parameters])
    session.ask(init)
    session.get(replace(session.job(init.request), placement=lies(session.spec, cut, 2)))
    for peer in (S0, S1):
        session.get(WELCOME, peer)
    return session


def test_who_was_told_the_shards_with_the_job_does_not_begin_its_pushes_anew() -> None:
    session = begun(cut=3)
    push = session.transfer("push")
    asked = session.ask(push)
    told = session.get(Recut(1, 3, lies(session.spec, 3, 2)))
    assert sent(told, Followed, COORDINATOR) == [Followed(1, 3, 0)]
    assert not sent(told, Hello)
    assert not sent(told, Push)
    done = list[Action]()
    for peer in (S0, S1):
        (first,) = sent(asked, Push, peer)
        done += session.get(Ack(first.request, [1] * len(first.parts), [0] * len(first.parts)), peer)
    assert resolved(done) == [(push, None)]
    assert {second.seq for second in sent(session.ask(session.transfer("push")), Push)} == {2}


def test_who_was_told_the_shards_before_goes_by_those_that_there_are() -> None:
    session = begun(cut=3)
    assert session.get(Recut(1, 2, lies(session.spec, 2, 2))) == [], "an older one"
    told = session.get(Recut(1, 4, lies(session.spec, 4, 3)))
    assert sent(told, Followed, COORDINATOR) == [Followed(1, 4, 0)]
    assert [hello.epoch for hello in sent(told, Hello)] == [40, 41, 42]
