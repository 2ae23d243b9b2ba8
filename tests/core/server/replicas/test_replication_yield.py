"""A leader that gives up its place to a backup that has all, and what becomes of the others."""

from __future__ import annotations

from tests.core.machines import job
from tests.core.server.copies import LEADER, Copies, pull, push, row
from tests.core.server.replicas.test_replication import B, C, pushed, trained
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.errors import DeposedError


def yielded(copies: Copies) -> list[tuple[int, int, dict[str, object]]]:
    return [(got.generation, got.busy, dict(got.numbers)) for got in copies.told("p", m.Yielded)]


def give_up(copies: Copies, generation: int = 1) -> None:
    copies.order("p", m.Yield(LEADER, generation))


def given_up() -> Copies:
    copies = trained(B)
    give_up(copies)
    return copies


def test_a_leader_gives_up_its_place_when_its_backups_have_all() -> None:
    copies = pushed(B)
    give_up(copies)
    assert yielded(copies) == [], "the push is on its way"
    copies.settle()
    ((generation, busy, numbers),) = yielded(copies)
    assert (generation, busy) == (1, 0)
    assert numbers == {"2": copies.nodes["b"].machine.replication.backups[2].number}
    assert [type(answer) for answer in copies.answers("w")] == [m.Ack], "what it has done it answers"


def test_from_then_on_it_answers_that_another_server_does() -> None:
    copies = given_up()
    copies.push("w", push(1, 1.0))
    copies.from_worker("p", "v", pull(2))
    assert copies.refused("w") == copies.refused("v") == [DeposedError.code]
    assert copies.is_copied(*B), "and does nothing"


def test_pulls_that_wait_for_a_version_are_sent_to_the_new_one() -> None:
    copies = trained(B)
    copies.from_worker("p", "w", m.Pull(5, LEADER, 3, 0, "raw", ((0, 0, ()),)))
    assert copies.answers("w") == []
    give_up(copies)
    assert (copies.answered("w"), copies.refused("w")) == ([5], [DeposedError.code])


def test_asked_again_it_says_the_same_and_older_requests_count_no_more() -> None:
    copies = trained(B)
    give_up(copies, 4)
    give_up(copies, 4)
    give_up(copies, 3)
    assert [generation for generation, _, _ in yielded(copies)] == [4, 4]


def broken_off(copies: Copies) -> None:
    """Let the leader say Hello again to what was its backup."""
    copies.cut("p", "b")
    copies.mend("p", "b")
    copies.settle()


def test_it_says_the_same_although_the_other_one_has_taken_its_place_meanwhile() -> None:
    copies = given_up()
    copies.promote("b", 2, generation=2)
    broken_off(copies)
    give_up(copies)  # by a coordinator that was away, and does not know what was answered before
    first, again = yielded(copies)
    assert first == again


def test_it_has_its_place_back_although_the_other_one_has_taken_it_where_nobody_goes_there() -> None:
    copies = given_up()
    copies.promote("b", 2, generation=2)
    broken_off(copies)
    copies.retarget(generation=3)
    copies.push("w", push(1, 1.0))
    assert [type(answer) for answer in copies.answers("w")] == [m.Ack]


def test_with_gradients_of_an_open_step_it_keeps_its_place() -> None:
    copies = trained(B, mode="sync")
    copies.push("w", push(1, 1.0, step=0, attempt=1))
    give_up(copies)
    assert [busy for _, busy, _ in yielded(copies)] == [1]
    copies.push("v", push(1, 1.0, step=0, attempt=1))
    copies.commit(0, "w", "v")
    copies.settle()
    assert copies.committed == [0]
    give_up(copies, 2)
    assert [busy for _, busy, _ in yielded(copies)] == [1, 0]


def test_without_a_backup_nobody_is_named_that_has_all() -> None:
    copies = trained()
    give_up(copies)
    assert [(busy, numbers) for _, busy, numbers in yielded(copies)] == [(0, {})]


def test_a_backup_that_is_being_filled_is_not_among_those_that_have_all() -> None:
    copies = Copies(job("a", "b"))
    copies.begin()
    copies.assign_backup("b", 2)
    copies.retarget(B)
    give_up(copies, 2)
    assert all("2" not in numbers for _, _, numbers in yielded(copies))


def test_a_newer_list_of_backups_gives_it_its_place_back() -> None:
    copies = trained(B)
    give_up(copies, 1)
    copies.retarget(generation=2)
    copies.settle()
    assert copies.told("p", m.Leading)
    copies.push("w", push(1, 1.0))
    assert [type(answer) for answer in copies.answers("w")] == [m.Ack]


def test_the_new_leader_goes_on_with_backups_that_have_all_that_it_has() -> None:
    copies = trained(B, C)
    for request in (1, 2, 3):
        copies.push("w", push(request, 1.0))
    copies.settle()
    give_up(copies)
    ((_, _, numbers),) = yielded(copies)
    equal = {**row("c", 3, of="b"), "number": numbers["3"]}
    copies.order("b", m.Lead(2, 2, {"rows": [equal]}))
    copies.order("p", m.Discard(LEADER, 1))
    copies.wait(1.0)
    before = copies.sent["Replicate"]
    copies.join("w", "b", 2)
    copies.push("w", push(4, 1.0, epoch=2), "b")
    assert copies.answers("w", "b") == [], "the other backup is waited for from the first"
    copies.settle()
    assert [type(answer) for answer in copies.answers("w", "b")] == [m.Ack]
    assert copies.is_copied("c", 3, "b", of=2)
    assert copies.sent["Replicate"] == before + 1, "nothing is copied again"


@for_each("freed", [False, True])
def test_whoever_comes_late_to_the_old_one_is_told_that_the_shard_has_moved(freed: bool) -> None:
    copies = given_up()
    copies.promote("b", 2, generation=2)
    if freed:
        copies.order("p", m.Discard(LEADER, 1))
    copies.push("w", push(1, 1.0))
    assert (len(copies.answers("w")), copies.refused("w")) == (1, [DeposedError.code])


def test_a_commit_of_a_shard_of_nothing_is_taken_whatever_was_told_before() -> None:
    copies = Copies(job("a", mode="sync"), empty=True)
    copies.begin()
    copies.commit(3)
    assert copies.committed == [3]
    assert not copies.told("p", m.Error)


def test_values_of_the_new_leader_are_those_of_the_old_one() -> None:
    copies = pushed(B)
    copies.settle()
    give_up(copies)
    copies.promote("b", 2, generation=2)
    copies.join("w", "b", 2)
    copies.from_worker("b", "w", pull(2, epoch=2))
    (values,) = [answer for answer in copies.answers("w", "b") if isinstance(answer, m.Values)]
    assert values.versions == (1,)
    assert not copies.told("p", m.Committed)
    assert not [got for got in copies.told("p", m.Lead)]
