"""How many pushes a checkpoint lacks: counted by runs, as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.worker.layout.sent import MAX_HEADS, MAX_RUNS, Sent


class Shard:
    """A worker's pushes to one shard, each of its messages kept by itself."""

    def __init__(self) -> None:
        self.sent = Sent()
        self.pushes: list[list[int]] = []

    def push(self, size: int) -> None:
        messages = list(range(self.sent.next_seq, self.sent.next_seq + size))
        self.sent.next_seq += size
        self.pushes.append(messages)
        self.sent.heads.append(messages[0])
        if len(self.sent.heads) >= MAX_HEADS:
            self.sent.fold()

    def lose(self, floor: int, applied: set[int], unanswered: set[int]) -> int:
        """Return how many pushes have a message that was answered and is not known; they are lost from now on."""

        def is_lost(push: list[int]) -> bool:
            return any(m > floor and m not in applied and m not in unanswered for m in push)

        lost = [push for push in self.pushes if is_lost(push)]
        self.pushes = [push for push in self.pushes if not is_lost(push)]
        return len(lost)


SIZES = st.lists(st.one_of(st.integers(1, 4), st.just(2)), max_size=30)


@given(
    st.lists(
        st.tuples(SIZES, st.integers(0, 60), st.sets(st.integers(1, 120)), st.sets(st.integers(1, 120))), max_size=3
    )
)
def test_what_is_lost_is_what_was_answered_and_the_checkpoint_lacks(
    lives: list[tuple[list[int], int, set[int], set[int]]],
) -> None:
    shard = Shard()
    for sizes, floor, applied, unanswered in lives:
        for size in sizes:
            shard.push(size)
        shard.sent.mark(unanswered)
        expected = shard.lose(floor, applied, unanswered)
        assert shard.sent.lose(floor, applied) == expected


def test_what_leaves_for_the_new_server_before_it_says_what_it_knows_is_not_lost() -> None:
    shard = Shard()
    shard.push(2)
    shard.sent.mark(())
    shard.push(2)
    assert shard.sent.lose(0, ()) == 1
    shard.sent.mark(())
    assert shard.sent.lose(0, ()) == 1, "the one that is lost already is not lost again"


def test_a_message_that_was_refused_is_not_lost() -> None:
    shard = Shard()
    for _ in range(3):
        shard.push(1)
    shard.sent.void(2)
    shard.sent.mark(())
    assert shard.sent.lose(1, ()) == 1


def test_a_long_training_takes_little_memory_and_one_of_many_sizes_no_more_than_a_bound() -> None:
    shard = Shard()
    for _ in range(3 * MAX_HEADS):
        shard.push(3)
    assert len(shard.sent._runs) == 1
    for number in range(3 * MAX_RUNS):
        shard.push(1 + number % 2)
    shard.sent.fold()
    assert len(shard.sent._runs) == MAX_RUNS
    shard.sent.mark(())
    assert shard.sent.lose(0, ()) == 3 * MAX_HEADS + 3 * MAX_RUNS
