"""Mutations written by hand, each of which once went unnoticed; and found ones that change nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Written:
    """A change that once survived all tests."""

    path: str
    old: str  # stands once in the module
    new: str
    harm: str  # what it would do to a user


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """A change after which the module does the same."""

    path: str
    old: str  # the changed lines, without the space around them
    new: str
    reason: str


WRITTEN = (
    Written(
        path="zmqps/core/worker/link.py",
        old="unseen |= missed",
        new="unseen = missed",
        harm="a pull lands values without a push that had been asked for before it",
    ),
    Written(
        path="zmqps/core/worker/link.py",
        old="        self._retry_s = RETRY_S\n        self._retry_due = now + RETRY_S",
        new="        self._retry_due = now + RETRY_S",
        harm="after one silence, every later loss on the connection is noticed ever more slowly",
    ),
    Written(
        path="zmqps/core/worker/transfers.py",
        old="transfer.views.forget(target)",
        new="pass",
        harm="a synchronous pull in place returns arrays of two versions",
    ),
    Written(
        path="zmqps/core/coordinator/data.py",
        old="                del data.waiting[member.incarnation]\n                self._resume(member, _reason(data))",
        new="                del data.waiting[member.incarnation]",
        harm="steps no longer wait for a worker that has given up to wait for data, whose gradients are then dropped",
    ),
    Written(
        path="zmqps/core/job/keyspace.py",
        old="max(lo, ideal - ideal % (CUT_ALIGNMENT_NBYTES // table.dtype.itemsize))",
        new="ideal - ideal % (CUT_ALIGNMENT_NBYTES // table.dtype.itemsize)",
        harm="a cut that is rounded down falls into the small parameter before, which is then split",
    ),
    Written(
        path="zmqps/client/thread.py",
        old="        self.set_running_or_notify_cancel()\n",
        new="",
        harm="who waits for a future that was cancelled waits for ever",
    ),
)

EQUIVALENT = (
    Equivalent(
        path="zmqps/core/worker/transfers.py",
        old="if due is not None and now >= due:",
        new="if (due is not None):",
        reason="a link does only what is due",
    ),
    Equivalent(
        path="zmqps/core/node/throttle.py",
        old="self._until = 0.0",
        new="self._until = -1.0",
        reason="no clock is below zero",
    ),
    Equivalent(
        path="zmqps/core/worker/session.py",
        old="self._next_request = 1",
        new="self._next_request = 2",
        reason="any number will do that is not 0",
    ),
    Equivalent(
        path="zmqps/core/coordinator/steps.py",
        old="if member is not None and request is not None:",
        new="if (member is not None or request is not None):",
        reason="who waits is a member and has asked",
    ),
    Equivalent(
        path="zmqps/core/coordinator/consistency/base.py",
        old="waiting: bool = False",
        new="waiting: bool = True",
        reason="who arrives waits",
    ),
    Equivalent(
        path="zmqps/core/coordinator/consistency/bsp.py",
        old="return False",
        new="return None",
        reason="it is only asked whether",
    ),
    Equivalent(
        path="zmqps/core/server/shard.py",
        old="if source is not state.value and sum(gradient.size for _, gradient in means) < source.size:",
        new="if source is not state.value and (sum((gradient.size for _, gradient in means)) <= source.size):",
        reason="copies what is then overwritten",
    ),
    Equivalent(
        path="zmqps/core/server/machine.py",
        old="seed = versions[0] << 32 | message.parts[0][0] if versions else 0",
        new="seed = versions[-1] << 32 | message.parts[0][0] if versions else 0",
        reason="any number will do that is the same for all who read these versions",
    ),
    Equivalent(
        path="zmqps/core/worker/outbox.py",
        old="number: int = 0",
        new="number: int = 1",
        reason="a request is numbered when it leaves",
    ),
    Equivalent(
        path="zmqps/core/worker/outbox.py",
        old="place: int = 0  # in the order asked",
        new="place: int = 1  # in the order asked",
        reason="the outbox numbers what it takes",
    ),
    Equivalent(
        path="zmqps/core/coordinator/consistency/deadline.py",
        old="self.deviation = 0.0",
        new="pass",
        reason="the first step that is seen sets it, and nothing asks for it before",
    ),
    Equivalent(
        path="zmqps/core/coordinator/consistency/deadline.py",
        old="self._backoff = 1",
        new="self._backoff = 0",
        reason="at the start: a step in time sets it before anybody is late. There, the tests notice it",
    ),
    Equivalent(
        path="zmqps/core/coordinator/startup.py",
        old="if self.placement is not None and len(self.built) < self.num_servers:",
        new="if (len(self.built) < self.num_servers):",
        reason="an init is parked with its job, and a job is placed as soon as all servers are there",
    ),
    Equivalent(
        path="zmqps/core/protocol/wire.py",
        old="last = -1",
        new="last = -0",
        reason="no bound is below zero",
    ),
)
