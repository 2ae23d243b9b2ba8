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
        path="zmqps/core/worker/connections/link.py",
        old="unseen |= missed",
        new="unseen = missed",
        harm="a pull lands values without a push that had been asked for before it",
    ),
    Written(
        path="zmqps/core/worker/connections/link.py",
        old="        self.probe.wait_s = PROBE_S\n",
        new="",
        harm="after one silence, every later loss on the connection is noticed ever more slowly",
    ),
    Written(
        path="zmqps/core/worker/views.py",
        old="self.views.forget(place)",
        new="pass",
        harm="a synchronous pull in place returns arrays of two versions",
    ),
    Written(
        path="zmqps/core/coordinator/training/data.py",
        old="                del data.waiting[member.incarnation]\n                self._resume(member, _reason(data))",
        new="                del data.waiting[member.incarnation]",
        harm="steps no longer wait for a worker that has given up to wait for data, whose gradients are then dropped",
    ),
    Written(
        path="zmqps/core/job/keyspace.py",
        old="max(lo, ideal - ideal % (CUT_ALIGNMENT_NBYTES // itemsize))",
        new="ideal - ideal % (CUT_ALIGNMENT_NBYTES // itemsize)",
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
        path="zmqps/core/server/machine.py",
        old="seed = versions[0] << 32 | message.parts[0][0] if versions else 0",
        new="seed = versions[0] << 32 | message.parts[0][0] if versions else 1",
        reason="without parts nothing is encoded",
    ),
    Equivalent(
        path="zmqps/core/worker/connections/links.py",
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
        path="zmqps/core/worker/questions.py",
        old="self.numbers = count(1)",
        new="self.numbers = count(2)",
        reason="any number will do that is not 0",
    ),
    Equivalent(
        path="zmqps/core/server/machine.py",
        old="seed = versions[0] << 32 | message.parts[0][0] if versions else 0",
        new="seed = versions[-1] << 32 | message.parts[0][0] if versions else 0",
        reason="any number will do that is the same for all who read these versions",
    ),
    Equivalent(
        path="zmqps/core/worker/transfer.py",
        old="number: int = 0",
        new="number: int = 1",
        reason="a request is numbered when it is queued",
    ),
    Equivalent(
        path="zmqps/core/coordinator/consistency/synchronous.py",
        old="self.deviation = 0.0",
        new="pass",
        reason="the first step that is seen sets it, and nothing asks for it before",
    ),
    Equivalent(
        path="zmqps/core/coordinator/consistency/synchronous.py",
        old="self._backoff = 1",
        new="self._backoff = 0",
        reason="at the start: a step in time sets it before anybody is late. There, the tests notice it",
    ),
    Equivalent(
        path="zmqps/core/protocol/wire.py",
        old="last = -1",
        new="last = -0",
        reason="no bound is below zero",
    ),
    Equivalent(
        path="zmqps/core/worker/connections/link.py",
        old="self.num_sent = 0",
        new="self.num_sent = -1",
        reason="these numbers are only compared with each other",
    ),
    Equivalent(
        path="zmqps/core/coordinator/consistency/synchronous.py",
        old="self._backoff = 1",
        new="pass",
        reason="as above: nobody is late before a step in time",
    ),
    Equivalent(
        path="zmqps/core/coordinator/consistency/synchronous.py",
        old="self.mean = 0.0",
        new="self.mean = -1.0",
        reason="the first step that is seen sets it, and nothing asks for it before",
    ),
    Equivalent(
        path="zmqps/core/worker/connections/link.py",
        old="default_factory=lambda: count(1)",
        new="default_factory=lambda: count(2)",
        reason="any number will do that is not 0",
    ),
    Equivalent(
        path="zmqps/core/worker/session.py",
        old="self.now = 0.0  # of the event being handled",
        new="pass  # of the event being handled",
        reason="every event sets it before anything looks at it",
    ),
    Equivalent(
        path="zmqps/core/coordinator/kernel/machine.py",
        old="self._reminder_due = 0.0",
        new="self._reminder_due = -1.0",
        reason="the start sets it",
    ),
)
