"""What the synchronous barrier keeps counted, beside a barrier that looks at everybody for each decision."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.coordinator.consistency import Commitment, Decision, Grant, Synchronous

WORKERS = (b"a", b"b", b"c", b"d")


@dataclass
class Looking:
    """The same rules without deadlines, every set made anew from what each worker has done."""

    aggregate: int | None
    step: int = 0
    live: list[bytes] = field(default_factory=list)
    paused: set[bytes] = field(default_factory=set)
    brought: dict[bytes, list[int]] = field(default_factory=dict)
    waits_since: dict[bytes, int] = field(default_factory=dict)
    late: list[Grant] = field(default_factory=list)
    time: int = 0

    def join(self, worker: bytes) -> None:
        if worker not in self.live:
            self.live.append(worker)
            if worker in self.waits_since:  # nobody was asked on its behalf while it was paused
                self.waits_since[worker] = self.tick()
        self.paused.discard(worker)

    def pause(self, worker: bytes) -> None:
        self.live = [other for other in self.live if other != worker]
        self.paused.add(worker)

    def leave(self, worker: bytes) -> None:
        self.live = [other for other in self.live if other != worker]
        self.paused.discard(worker)
        self.waits_since.pop(worker, None)
        if not self.brought.get(worker, True):
            del self.brought[worker]

    def retract(self, worker: bytes) -> None:
        self.brought.pop(worker, None)
        self.waits_since.pop(worker, None)

    def arrive(self, worker: bytes, step: int, attempts: tuple[int, ...]) -> None:
        if step != self.step:
            self.late.append(Grant(worker, self.step, not attempts))
            return
        self.brought.setdefault(worker, []).extend(attempts)
        self.waits_since.setdefault(worker, self.tick())

    def decide(self, missing: int) -> Decision:
        granted, self.late = self.late, []
        count = sum(map(len, self.brought.values()))
        everybody = bool(self.brought) and not missing and all(worker in self.brought for worker in self.live)
        if count >= self.aggregate if self.aggregate is not None else everybody:
            contributors = tuple((worker, tuple(attempts)) for worker, attempts in self.brought.items() if attempts)
            commitment = Commitment(self.step, contributors, count, left_out=False)  # each of one example
            self.step += 1
            granted += [Grant(worker, self.step, True) for worker in self.brought if worker in self.waits_since]
            self.brought, self.waits_since = {}, {}
            return Decision(tuple(granted), commitment)
        if self.aggregate is not None:
            waiting = sorted((w for w in self.live if w in self.waits_since), key=lambda w: self.waits_since[w])
            needed = self.aggregate - count - (len(self.live) - len(waiting))
            for worker in waiting[: max(0, needed)]:
                del self.waits_since[worker]
                granted.append(Grant(worker, self.step, True))
        return Decision(tuple(granted))

    def awaited(self) -> list[bytes]:
        return [worker for worker in self.live if worker not in self.waits_since] if self.waits_since else []

    def tick(self) -> int:
        self.time += 1
        return self.time


def ordered(decision: Decision) -> Decision:
    """Return a decision whose order, which means nothing, is always the same."""
    commitment = decision.commitment
    if commitment is not None:
        commitment = replace(commitment, contributors=tuple(sorted(commitment.contributors)))
    granted = sorted(decision.granted, key=lambda grant: (grant.worker, grant.version, grant.counted))
    return replace(decision, granted=tuple(granted), commitment=commitment)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "arrive", "skip", "late", "pause", "leave", "retract"]), st.sampled_from(WORKERS)
    ),
    max_size=60,
)


@pytest.mark.parametrize("aggregate", [None, 2, 5, 9])
@given(events=EVENTS, missing=st.integers(0, 1))
def test_it_decides_what_a_look_at_everybody_would(
    aggregate: int | None, events: list[tuple[str, bytes]], missing: int
) -> None:
    policy, simple = Synchronous(aggregate), Looking(aggregate)
    for attempt, (kind, worker) in enumerate(events, start=1):
        if kind == "join":
            policy.join(worker)
            simple.join(worker)
        elif kind in ("pause", "leave", "retract"):
            if kind != "pause" or worker in simple.live:
                getattr(policy, kind)(worker)
                getattr(simple, kind)(worker)
        elif worker in simple.live:
            step = simple.step - (kind == "late")
            attempts = () if kind == "skip" else (attempt,)
            policy.arrive(worker, step, attempts, 0.0)
            simple.arrive(worker, step, attempts)
        assert ordered(policy.decide(missing, 0.0)) == ordered(simple.decide(missing))
        policy.validate()
        assert set(policy.awaited()) == set(simple.awaited())
        assert policy.arrived() == set(simple.brought)
        assert policy.clock == simple.step
