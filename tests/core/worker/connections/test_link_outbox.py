"""What leaves first: pushes in their order, pulls in theirs, and no pull before a push that it must see."""

from __future__ import annotations

import hypothesis
import numpy as np
from hypothesis import strategies as st

from zmqps.core.job.keyspace import Slice
from zmqps.core.worker.connections.link import Outbox
from zmqps.core.worker.transfer import Cargo, LoadTransfer, PullTransfer, PushTransfer, Request, Source, Target

SLICES = [
    Cargo(
        slice=Slice(shard=0, index=i, table=0, start=i, stop=i + 1, segments=()),
        ranges=(),
        extents=(),
        dtype=np.dtype("f4"),
        nbytes=4,
    )
    for i in range(5)
]
KINDS = {
    "push": lambda: PushTransfer(source=Source()),
    "pull": lambda: PullTransfer(target=Target()),
    "push_pull": lambda: PushTransfer(source=Source(), target=Target()),
    "load": lambda: LoadTransfer(source=Source()),
}


def request(kind: str, slices: set[int]) -> Request:
    cargoes = tuple(SLICES[i] for i in sorted(slices))
    return Request(transfer=KINDS[kind](), cargoes=cargoes, nbytes=4 * len(slices))


#: What is asked for; None: one leaves.
STEPS = st.lists(
    st.none() | st.builds(request, st.sampled_from(list(KINDS)), st.sets(st.integers(0, 4), min_size=1, max_size=3)),
    max_size=40,
)


@hypothesis.given(STEPS)
def test_the_order_in_which_requests_leave(steps: list[Request | None]) -> None:
    box, waiting = Outbox(), list[Request]()
    for number, step in enumerate([*steps, *[None] * len(steps)], 1):
        if step is not None:
            step.number = number
            box.add(step)
            waiting.append(step)
        elif waiting:
            leaves = box.peek()
            assert leaves is not None
            box.pop(leaves)
            before = waiting[: waiting.index(leaves)]
            pulls = [r for r in waiting if isinstance(r.transfer, PullTransfer)]
            pushes = [r for r in waiting if not isinstance(r.transfer, PullTransfer)]
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
    for number, one in enumerate((push, keep, pull), 1):
        one.number = number
        box.add(one)
    box.drop(push.transfer)
    assert list(box) == [keep, pull]
    assert box.peek() is pull, "what it waited for is gone"
    box.clear()
    assert not box
