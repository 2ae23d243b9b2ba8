"""What leaves first: pushes in their order, pulls in theirs, and no pull before a push that it must see."""

from __future__ import annotations

import hypothesis
import numpy as np
from hypothesis import strategies as st

from zmqps.core.job.keyspace import Slice
from zmqps.core.worker.operations import Cargo, Transfer
from zmqps.core.worker.outbox import Outbox, Request

SLICES = [
    Cargo(Slice(shard=0, index=i, table=0, start=i, stop=i + 1, segments=()), (), (), np.dtype("f4"), 4)
    for i in range(5)
]


def request(kind: str, slices: set[int]) -> Request:
    return Request(Transfer(0.0, kind=kind), tuple(SLICES[i] for i in sorted(slices)), 4 * len(slices))


#: What is asked for; None: one leaves.
STEPS = st.lists(
    st.none()
    | st.builds(
        request,
        st.sampled_from(["push", "pull", "push_pull", "load"]),
        st.sets(st.integers(0, 4), min_size=1, max_size=3),
    ),
    max_size=40,
)


@hypothesis.given(STEPS)
def test_the_order_in_which_requests_leave(steps: list[Request | None]) -> None:
    box, waiting = Outbox(), list[Request]()
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            box.add(step)
            waiting.append(step)
        elif waiting:
            leaves = box.pop()
            before = waiting[: waiting.index(leaves)]
            pulls = [r for r in waiting if r.transfer.kind == "pull"]
            pushes = [r for r in waiting if r.transfer.kind != "pull"]
            if leaves in pulls:
                assert leaves is pulls[0]
                assert all(r.slices.isdisjoint(leaves.slices) for r in before if r in pushes)
            else:
                assert leaves is pushes[0]
                ahead = waiting[: waiting.index(pulls[0])] if pulls else []
                assert not pulls or any(r in pushes and not r.slices.isdisjoint(pulls[0].slices) for r in ahead), (
                    "the pull waited for nothing"
                )
            waiting.remove(leaves)
        box.validate()
        assert set(box) == set(waiting)
    assert not box
    assert box.peek() is None


def test_the_requests_of_a_transfer_can_be_dropped() -> None:
    box = Outbox()
    keep, push, pull = request("push", {0}), request("push", {1}), request("pull", {1})
    for one in (push, keep, pull):
        box.add(one)
    box.drop(push.transfer)
    assert list(box) == [keep, pull]
    assert box.peek() is pull, "what it waited for is gone"
    box.clear()
    assert not box
