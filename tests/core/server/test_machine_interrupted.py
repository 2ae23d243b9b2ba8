"""Memory that is short at any line of a push or a commit: it is asked for again, and applied once."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests.core.machines import job, peer, sent
from tests.core.server.dense.test_buffers import Reading
from tests.core.server.scarcity import held_nbytes, state_of
from tests.core.server.test_machine import Server, pull, push
from tests.core.server.test_machine_steps import brought, commit
from tests.simulator.jobs.training import ReferenceRules
from zmqps.core.protocol.events import COORDINATOR
from zmqps.core.protocol.messages import Ack, Committed, Error, Load, Message
from zmqps.core.server import ledger, machine
from zmqps.core.server.dense import aggregate, buffers, part, rules, slices, stale
from zmqps.core.server.dense.stale import treated
from zmqps.core.server.shard import Shard
from zmqps.core.treatments import Compensate, Drop
from zmqps.errors import ServerMemoryError, ShardBrokenError
from zmqps.optim import OptimizerSpec, sgd

pytestmark = pytest.mark.repeats

FILES = {module.__file__ for module in (aggregate, buffers, ledger, machine, part, slices, stale, rules)}
#: All that a push or a commit may be: with values that are still read, kept versions, and gradients that are dropped.
KINDS = ["async", "read", "treated", "dropped", "sync", "retained"]
#: Three slices of two parts, one of them in ranges.
PARTS = ((0, 0, ()), (1, 0, ()), (2, 0, (0, 8)))


class InPlace(ReferenceRules):
    """Rules of which no copies are kept while they compute."""

    allocates = False


#: Each kind with each of the rules: in every run with one of them, in turn.
CASES = [
    pytest.param(kind, rules, marks=[] if (number + other) % 2 == 0 else [pytest.mark.repeats])
    for number, kind in enumerate(KINDS)
    for other, rules in enumerate((ReferenceRules, InPlace))
]


class Lines:
    """Raises `MemoryError` once: before a line of a server's modules, after so many others."""

    def __init__(self, left: int = 1 << 30) -> None:
        self.left = left
        self.passed: list[str] = []

    @property
    def where(self) -> str:
        return self.passed[-1]

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in FILES or frame.f_code.co_name == "validate":
            return None
        if event == "line":
            self.passed.append(f"{frame.f_code.co_qualname} {frame.f_lineno}")
            if len(self.passed) > self.left:
                self.left = 1 << 30
                raise MemoryError(f"before {self.where}")
        return self

    def chosen(self) -> list[int]:
        """Return the numbers of the lines that were passed, of each the first time and the last."""
        times: dict[str, list[int]] = {}
        for number, where in enumerate(self.passed):
            times.setdefault(where, []).append(number)
        return sorted({number for numbers in times.values() for number in (numbers[0], numbers[-1])})

    def during(self, do: Callable[[], Any]) -> list[Any]:
        """Return the actions that something leads to; none where it failed for good."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return do()  # type: ignore[no-any-return]
        except MemoryError:
            return []
        finally:
            sys.settrace(before)


def server_of(kind: str, rules: type[ReferenceRules]) -> Server:
    def make(spec: Any, where: Any, index: int, room: Any) -> Shard:
        treatment = Compensate(0.5) if kind == "treated" else Drop(0) if kind == "dropped" else None
        return Shard(
            where, index, rules(OptimizerSpec.from_wire(spec.optimizer)), dense=treated(treatment),
            synchronous=spec.mode == "sync", retain=spec.retain,
        )  # fmt: skip

    server = Server(make)
    options = {"mode": "sync", "retain": 2 if kind == "retained" else 0} if kind in ("sync", "retained") else {}
    server.spec = replace(job("a", "b", "c", **options), optimizer=sgd(0.5, momentum=0.9).to_wire())
    server.train("w", "v")
    server.get(Load(2, 1, ((2, 0, ()),), (np.zeros(8, np.float32),)), "loader")
    return server


class Run:
    """A server in the middle of a training, some of whose values are still read."""

    def __init__(self, kind: str, rules: type[ReferenceRules]) -> None:
        self.server = server_of(kind, rules)
        self.shard = self.server.machine.tenants[1].built()
        self.synchronous = self.shard.steps is not None
        for number in range(3):
            self.pushed("v", number)
            self.committed("v", number)
            if kind != "async":
                self.read("w", Reading())
        self.server.get(pull(9, version=4), "v")  # waits

    def read(self, name: str, reader: Reading) -> None:
        for index, _, _ in PARTS:
            for action in self.server.get(pull(8, slice_=index), name):
                for watchers in getattr(action, "readers", ()):
                    watchers.append(reader)

    def push(self, name: str, number: int) -> Message:
        values = np.arange(24, dtype=np.float32) + number
        parts = tuple((index, 2 if index else 3, ranges) for index, _, ranges in PARTS)
        return push(number + 1, values, step=number if self.synchronous else 0, attempt=1, parts=parts)

    def pushed(self, name: str, number: int) -> list[Any]:
        return self.server.get(self.push(name, number), name)

    def committed(self, name: str, number: int) -> list[Any]:
        return commit(self.server, brought(name), step=number) if self.synchronous else []

    def state(self) -> Any:
        return {**state_of(self.shard), "counters": None, "copies": None}

    def written(self) -> Any:
        state = self.state()
        return state["slices"], state["stage"]

    def check(self) -> None:
        self.server.machine.validate()
        if self.shard.dense.updates.broken is None:
            assert self.shard.counters["spare_nbytes"] >= held_nbytes(self.shard)
        owned = [id(spare) for (spare, _), _ in self.shard.dense._buffers._spares]
        assert len(set(owned)) == len(owned), "a buffer is there for two"
        assert not {id(state.value) for state in self.shard.slices} & set(owned)


def interrupted(
    kind: str,
    rules: type[ReferenceRules],
    do: Callable[[Run], list[Any]],
    ready: Callable[[Run], None],
    in_part: bool = False,
) -> tuple[Run, set[str]]:
    """Do something that fails before each line in turn, and again until it works; return it undisturbed, and where."""
    plain = Run(kind, rules)
    ready(plain)
    fresh = deepcopy(plain)  # which takes half as long as to train another one up to here
    before = plain.written()
    passed = Lines()
    answers = answered(passed.during(lambda: do(plain)))
    assert answers
    for number in passed.chosen():
        run, lines = deepcopy(fresh), Lines(number)
        actions = lines.during(partial(do, run))
        run.check()
        if run.shard.dense.updates.broken is not None:
            assert not rules.allocates
            assert codes(actions) <= {ShardBrokenError.code}
            assert lines.where.startswith(("Updates._compute", "Updates.apply")), lines.where
            continue
        assert codes(actions) <= {ServerMemoryError.code}, lines.where
        assert run.written() in (before, plain.written()) or in_part, lines.where
        while not answered(actions):
            actions = do(run)
            assert codes(actions) == set(), lines.where
        assert answered(actions) == answers, lines.where
        run.check()
        assert run.state() == plain.state(), lines.where
    return plain, set(passed.passed)


def is_counting(place: str) -> bool:
    """Whether a line is one that counts an update which is written."""
    lines, first = inspect.getsourcelines(slices.Updates.apply)
    texts = [line.strip() for line in lines]
    function, line = place.split()
    begin, end = texts.index("written = True"), texts.index("except BaseException as error:")
    return function == "Updates.apply" and begin < int(line) - first < end


def answered(actions: list[Any]) -> list[Any]:
    return [*sent(actions, Ack, peer("w")), *sent(actions, Committed, COORDINATOR)]


def codes(actions: list[Any]) -> set[int]:
    return {message.code for message in sent(actions, Error)}


@pytest.mark.parametrize(("kind", "rules"), CASES)
def test_a_push_is_applied_once_wherever_memory_is_short(kind: str, rules: type[ReferenceRules]) -> None:
    def ready(run: Run) -> None:
        pass

    run, places = interrupted(kind, rules, lambda run: run.pushed("w", 3), ready)
    assert any("Ledger.record" in place for place in places)
    assert run.synchronous or any(map(is_counting, places))


@pytest.mark.parametrize("rules", [ReferenceRules, InPlace])
@pytest.mark.parametrize("kind", ["sync", "retained"])
def test_a_step_is_applied_once_to_each_slice_wherever_memory_is_short(kind: str, rules: type[ReferenceRules]) -> None:
    def ready(run: Run) -> None:
        for name in ("w", "v"):
            run.pushed(name, 3)

    def do(run: Run) -> list[Any]:
        return commit(run.server, brought("w"), brought("v"), step=3)

    _, places = interrupted(kind, rules, do, ready, in_part=True)
    assert any(map(is_counting, places))
