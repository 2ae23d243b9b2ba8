"""Copies of a shard: what a leader acknowledges its backups have, whatever happens to the links between them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.machines import assign, identity, job
from tests.core.server.copies import LEADER, WELCOME, Copies, Node, pull, push, row
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Returned, Run
from zmqps.core.server.replicas.replication import MAX_BACKUPS
from zmqps.errors import ConfigurationError, DeposedError, JobError, ServerMemoryError

B, C = ("b", 2), ("c", 3)


def trained(*backups: tuple[str, int], **options: object) -> Copies:
    """Return copies that are filled, and two workers that have joined."""
    copies = Copies(job("a", "b", **options))  # type: ignore[arg-type]
    copies.begin(*backups)
    copies.wait(1.0)
    copies.join("w")
    copies.join("v")
    return copies


def pushed(*backups: tuple[str, int], **options: object) -> Copies:
    """Return copies of which one worker has pushed once."""
    copies = trained(*backups, **options)
    copies.push("w", push(1, 1.0))
    return copies


def filled_later(**options: object) -> Copies:
    """Return a leader that trains, and a backup that is yet to be filled."""
    copies = trained(**options)
    copies.assign_backup(*B)
    copies.retarget(B)
    return copies


def ready(copies: Copies, name: str) -> list[tuple[int, int]]:
    return [(got.epoch, got.loaded) for got in copies.told(name, m.Ready)]


# --- filling ------------------------------------------------------------------------------------


def test_a_backup_gets_the_initial_values_and_says_when_it_is_whole() -> None:
    copies = Copies()
    copies.begin(B, load=False)
    copies.wait(1.0)
    assert ready(copies, "b") == [(2, 0)]
    copies.load()
    copies.wait(1.0)
    assert ready(copies, "b") == [(2, 0), (2, 1)]
    assert copies.is_copied(*B)


@for_each("mode", ["async", "sync"])
def test_a_backup_of_a_shard_without_slices_is_whole_when_it_knows_the_step(mode: str) -> None:
    copies = Copies(job("a", **MODES[mode]), empty=True)
    copies.begin()
    if mode == "sync":
        copies.commit(0)
        copies.commit(1)
    copies.retarget(B)
    copies.wait(1.0)
    copies.assign_backup(*B)
    assert ready(copies, "b") == [(2, 0)], "built, and at no step that is known"
    copies.wait(3.0)
    assert ready(copies, "b") == [(2, 0), (2, 1)]
    assert copies.is_copied(*B)


def test_a_backup_whose_server_hears_of_it_late_is_filled_all_the_same() -> None:
    copies = Copies()
    copies.begin()
    copies.retarget(B)
    copies.wait(3.0)
    copies.assign_backup(*B)
    copies.wait(3.0)
    assert copies.is_copied(*B)


def test_a_backup_is_filled_while_pushes_go_on() -> None:
    copies = trained()
    copies.push("w", push(1, 1.0, 0, 1))
    copies.assign_backup(*B)
    copies.retarget(B)
    for seq in range(2, 12):
        copies.push("w", push(seq, float(seq), seq % 2))
        copies.push("w", push(seq + 100, 0.5, 0, 1))
        if copies.busy:
            copies.deliver(copies.busy[0])
    copies.wait(2.0)
    assert copies.is_copied(*B)
    assert ready(copies, "b")[-1] == (2, 1)


def about_to_fill() -> Copies:
    """Return a leader that trains, and a backup that is to be filled next."""
    copies = filled_later()
    for _ in range(3):  # Hello, Welcome, what it has
        copies.deliver(copies.busy[0])
    copies.push("w", push(1, 1.0))
    return copies


@for_each(
    "seconds, rests", [(0.5, 1.5), (10.0, 2.0)], ids=["three times as long", "no longer because a host stood still"]
)
def test_a_backup_rests_between_slices_while_training_goes_on(seconds: float, rests: float) -> None:
    copies = about_to_fill()
    copies.now += seconds  # so long the first slice takes
    copies.settle()
    missing = copies.nodes["b"].shard(2).came.missing
    assert 1 in missing
    copies.wait(rests - 0.1)
    assert 1 in missing
    copies.wait(0.2)
    assert 1 not in missing


def test_a_backup_rests_for_what_a_slice_takes_and_not_for_how_long_it_was_not_there() -> None:
    copies = about_to_fill()
    copies.cut("p", "b")
    copies.now += 10.0
    copies.mend("p", "b")
    copies.wait(0.2)
    assert 1 not in copies.nodes["b"].shard(2).came.missing


def test_nobody_waits_for_a_backup_that_is_yet_to_be_built() -> None:
    copies = trained()
    copies.retarget(B)
    for seq in range(1, 4):
        copies.push("w", push(seq, 1.0))
    copies.wait(2.0)
    assert copies.answered("w") == [101, 102, 103]
    copies.assign_backup(*B)
    copies.wait(3.0)
    assert copies.is_copied(*B)
    copies.push("w", push(4, 1.0))
    assert copies.answered("w") == [101, 102, 103], "now it is there"


def test_nobody_waits_for_a_backup_that_is_being_built_and_it_is_filled_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies, later = trained(), list[Run]()
    carry = copies.carry

    def without_building(node: Node, actions: list[Action]) -> None:
        later.extend(action for action in actions if isinstance(action, Run))
        carry(node, [action for action in actions if not isinstance(action, Run)])

    monkeypatch.setattr(copies, "carry", without_building)
    copies.assign_backup(*B)
    copies.retarget(B)
    copies.settle()
    copies.push("w", push(1, 1.0))
    copies.settle()
    assert copies.answered("w") == [101]
    assert not [text for node in copies.nodes.values() for text in node.logged if "cannot follow" in text]
    (build,) = later
    copies.handle("b", Returned(build.tag, build.work()))
    copies.settle()
    assert copies.is_copied(*B)


def test_a_copy_that_is_not_whole_is_not_promoted() -> None:
    copies = Copies()
    copies.begin(B, load=False)
    copies.wait(1.0)
    copies.promote(*B)
    [error] = copies.told("b", m.Error)
    assert (error.request, error.code) == (2, JobError.code)


# --- answers ------------------------------------------------------------------------------------


def test_a_push_is_answered_when_the_backup_has_it() -> None:
    copies = pushed(B)
    assert copies.answers("w") == []
    copies.deliver(("p", "b"))
    assert copies.is_copied(*B)
    assert copies.answers("w") == []
    copies.deliver(("b", "p"))
    assert copies.answers("w") == [m.Ack(101, (1,), (0,))]


def test_a_push_without_backups_is_answered_at_once_and_nothing_is_sent() -> None:
    copies = trained()
    copies.push("w", push(1, 1.0))
    assert copies.answers("w") == [m.Ack(101, (1,), (0,))]
    assert copies.sent == {}


def test_a_push_waits_for_all_backups() -> None:
    copies = pushed(B, C)
    copies.deliver(("p", "b"))
    copies.deliver(("b", "p"))
    assert copies.answers("w") == []
    copies.settle()
    assert len(copies.answers("w")) == 1
    assert copies.is_copied(*B)
    assert copies.is_copied(*C)


def test_values_are_read_when_they_are_sent() -> None:
    copies = trained(B)
    copies.push("w", push(1, 1.0, reply=1))
    copies.push("v", push(1, 1.0))
    copies.settle()
    [values] = copies.answers("w")
    assert isinstance(values, m.Values)
    assert values.versions == (2,)
    assert np.frombuffer(values.payload[0], np.float32).tolist() == (np.arange(8) - 2.0).tolist()


def test_a_push_that_comes_again_waits_as_the_first_one_does_and_is_answered_once() -> None:
    copies = pushed(B)
    copies.push("w", push(1, 1.0))
    copies.push("w", push(1, 1.0, request=7))
    assert copies.answers("w") == []
    copies.settle()
    assert copies.answered("w") == [101, 7]
    copies.push("w", push(1, 1.0))
    assert copies.answered("w") == [101, 7, 101], "it is confirmed: at once"
    assert copies.nodes["p"].machine.counters()["duplicates"] == 3


def test_answers_to_one_worker_keep_the_order_of_its_requests() -> None:
    copies = pushed(B)
    copies.from_worker("p", "w", pull(7))
    copies.push("w", push(2, 1.0, 1))
    copies.from_worker("p", "w", pull(8, 0, 1))
    copies.from_worker("p", "w", pull(9).__class__(9, LEADER, 0, 0, "raw", ()))
    copies.from_worker("p", "v", pull(5))
    assert copies.answered("w") == []
    assert copies.answered("v") == [5], "who has pushed nothing waits for nothing"
    copies.settle()
    assert copies.answered("w") == [101, 7, 102, 8, 9]


def test_a_pull_does_not_wait_for_the_answers_to_others() -> None:
    copies = pushed(B)
    copies.push("v", push(1, 1.0))
    copies.from_worker("p", "w", pull(7))
    copies.deliver(("p", "b"))
    copies.deliver(("b", "p"))
    copies.from_worker("p", "w", pull(8))
    assert copies.answered("w") == [101, 7, 8]
    assert copies.answered("v") == []


def test_a_leader_that_does_not_reach_its_backup_acknowledges_nothing() -> None:
    copies = trained(B)
    copies.cut("p", "b")
    copies.push("w", push(1, 1.0))
    copies.wait(60.0)
    assert copies.answers("w") == []
    copies.retarget(generation=2)
    assert copies.answered("w") == [101], "the coordinator has given the backup up"
    assert copies.told("p", m.Leading) == [m.Leading(LEADER, 2, 0)]
    assert copies.nodes["p"].machine.tenants[LEADER].gate is None


def test_an_older_list_of_backups_counts_no_more() -> None:
    copies = trained(B)
    copies.retarget(generation=5)
    copies.retarget(B, generation=4)
    assert copies.told("p", m.Leading) == [m.Leading(LEADER, 5, 0)]
    assert copies.nodes["p"].machine.tenants[LEADER].gate is None


def test_the_answers_of_a_worker_that_has_gone_are_dropped() -> None:
    copies = pushed(B)
    copies.push("v", push(1, 1.0))
    copies.order("p", m.Departed(identity("worker", "w").incarnation, 0))
    copies.order("b", m.Departed(identity("worker", "w").incarnation, 0))
    copies.settle()
    assert copies.answered("w") == []
    assert copies.answered("v") == [101]
    assert copies.is_copied(*B)
    assert list(copies.nodes["b"].machine.tenants[2].ledgers) == [identity("worker", "v").incarnation]


def test_too_much_that_waits_is_refused_and_may_be_sent_again() -> None:
    copies = trained(B)
    stream = copies.nodes["p"].machine.replication.streams[LEADER]
    assert stream is not None
    stream._unconfirmed.limit = 3000
    copies.push("w", push(1, 1.0))
    copies.push("w", push(2, 1.0))
    [error] = copies.answers("w")
    assert isinstance(error, m.Error)
    assert (error.request, error.code) == (102, ServerMemoryError.code)
    copies.settle()
    copies.push("w", push(2, 1.0))
    copies.settle()
    assert copies.answered("w") == [102, 101, 102]
    assert copies.is_copied(*B)


def test_what_waits_is_counted_and_the_count_ends_at_nothing() -> None:
    copies = trained(B)
    for seq in range(1, 20):
        copies.push("w", push(seq, 1.0, 0, 1))
    waiting = copies.nodes["p"].machine.counters()["unconfirmed_nbytes"]
    assert 19 * 64 < waiting < 19 * 4096
    copies.settle()
    assert copies.nodes["p"].machine.counters()["unconfirmed_nbytes"] == 0


def test_the_backup_gets_what_was_applied_not_what_the_worker_writes_later() -> None:
    copies = trained(B)
    gradient = np.ones(8, np.float32)
    copies.push("w", push(1, 0.0, payload=(gradient,)))
    copies.cut("p", "b")
    gradient[:] = 99.0
    copies.mend("p", "b")
    copies.settle()
    assert copies.is_copied(*B)


# --- lost messages ------------------------------------------------------------------------------


def test_what_a_broken_connection_has_lost_comes_again() -> None:
    copies = trained(B)
    for seq in range(1, 6):
        copies.push("w", push(seq, float(seq)))
    copies.deliver(("p", "b"))
    copies.deliver(("p", "b"))
    copies.cut("p", "b")
    copies.push("w", push(6, 6.0))
    copies.mend("p", "b")
    copies.settle()
    assert copies.answered("w") == [101, 102, 103, 104, 105, 106]
    assert copies.is_copied(*B)


def test_a_record_that_there_was_no_memory_for_is_asked_for() -> None:
    copies = trained(B)
    for seq in range(1, 4):
        copies.push("w", push(seq, float(seq)))
    copies.wires["p", "b"].popleft()  # lost, although the connection lives
    copies.settle()
    assert copies.answered("w") == [101, 102, 103]
    assert copies.sent["Replicate"] < 12, "once, not once for each that came behind it"


@for_each("its_answer", [False, True])
def test_a_last_record_that_is_lost_or_its_answer_is_noticed_after_a_silence(its_answer: bool) -> None:
    copies = pushed(B)
    if its_answer:
        copies.deliver(("p", "b"))
    copies.wires["b" if its_answer else "p", "p" if its_answer else "b"].popleft()
    copies.wait(2.0)
    assert copies.answers("w") == []
    copies.wait(2.0)
    assert copies.answered("w") == [101]
    assert copies.is_copied(*B)


# --- promotion ----------------------------------------------------------------------------------


def test_a_promoted_backup_answers_with_all_that_was_acknowledged() -> None:
    copies = trained(B)
    for seq in range(1, 4):
        copies.push("w", push(seq, float(seq), seq % 2))
    copies.settle()
    copies.promote(*B)
    assert copies.told("b", m.Leading) == [m.Leading(2, 1, 0)]
    assert copies.is_copied(*B)
    copies.join("w", "b", 2)
    copies.push("w", push(3, 3.0, 1, epoch=2), "b")
    copies.push("w", push(4, 4.0, epoch=2), "b")
    known_once = [m.Ack(103, (2,), (1,)), m.Ack(104, (2,), (1,))]
    assert copies.answers("w", "b") == known_once


def test_a_promotion_that_is_said_again_is_answered_again_and_an_older_one_not() -> None:
    copies = trained(B)
    copies.promote("b", 2, 3)
    copies.promote("b", 2, 3)
    copies.promote("b", 2, 2)
    assert [got.generation for got in copies.told("b", m.Leading)] == [3, 3]


def test_an_old_leader_is_refused_and_answers_no_more() -> None:
    copies = trained(B)
    copies.promote(*B)
    copies.push("w", push(1, 1.0))
    copies.from_worker("p", "w", pull(7))
    copies.settle()
    assert (copies.answered("w"), copies.refused("w")) == ([101, 7], [DeposedError.code] * 2)
    copies.push("v", push(1, 1.0))
    copies.from_worker("p", "v", pull(7))
    assert copies.refused("v") == [DeposedError.code] * 2
    assert copies.nodes["b"].shard(2).slices[0].version == 0
    assert copies.nodes["p"].machine.next_deadline() is None or not copies.nodes["p"].machine.replication.due


@for_each("mode, waits", [("async", False), ("bounded", True)])
def test_a_bounded_read_waits_until_a_backup_says_that_it_still_follows(mode: str, waits: bool) -> None:
    copies = trained(B, **MODES[mode])
    copies.from_worker("p", "w", pull(7))
    assert [type(got) for got in copies.answers("w")] == ([] if waits else [m.Values])
    copies.from_worker("p", "w", pull(7))  # asked again, it waits once
    copies.settle()
    assert [got.request for got in copies.answers("w") if isinstance(got, m.Values)] == ([7] if waits else [7, 7])


def test_a_bounded_read_that_was_given_up_is_not_answered_and_holds_up_nothing() -> None:
    copies = trained(B, mode="bounded", staleness=2)
    copies.from_worker("p", "w", pull(7))
    copies.from_worker("p", "w", pull(8))
    copies.from_worker("p", "w", m.Withdraw(7))
    copies.from_worker("p", "w", m.Withdraw(9))
    copies.settle()
    assert [got.request for got in copies.answers("w") if isinstance(got, m.Values)] == [8]
    copies.push("w", push(1, 1.0))
    copies.settle()
    assert copies.nodes["p"].machine.counters()["unconfirmed_nbytes"] == 0


def test_an_old_leader_that_has_not_heard_of_it_hands_out_nothing_in_the_bounded_mode() -> None:
    copies = trained(B, mode="bounded", staleness=2)
    copies.cut("p", "b")
    copies.promote(*B)
    copies.from_worker("p", "w", pull(7))
    copies.wait(5.0)
    assert copies.answers("w") == []
    copies.mend("p", "b")
    copies.settle()
    assert copies.refused("w") == [DeposedError.code]


def test_an_old_leader_that_was_cut_off_hears_it_when_it_is_back() -> None:
    copies = trained(B)
    copies.cut("p", "b")
    copies.promote(*B)
    copies.push("w", push(1, 1.0))
    copies.mend("p", "b")
    copies.settle()
    assert copies.refused("w") == [DeposedError.code]


def test_a_worker_that_comes_to_a_backup_is_told_to_wait() -> None:
    copies = trained(B)
    copies.join("w", "b", 2)
    assert copies.refused("w", "b") == [DeposedError.code]


def test_a_promoted_copy_gets_backups_of_its_own() -> None:
    copies = pushed(B)
    copies.settle()
    copies.promote(*B)
    copies.assign_backup(*C)
    copies.order("b", m.Lead(2, 2, {"rows": [row("c", 3, of="b")]}))
    copies.join("w", "b", 2)
    copies.wait(1.0)
    copies.push("w", push(2, 1.0, epoch=2), "b")
    assert copies.answers("w", "b") == []
    copies.wait(1.0)
    assert copies.answered("w", "b") == [102]
    assert copies.is_copied("c", 3, "b", of=2)


def test_the_end_of_a_job_ends_its_copies() -> None:
    copies = pushed(B)
    copies.order("p", m.Discard(LEADER))
    copies.order("b", m.Discard(2))
    copies.wait(20.0)
    for name in "pb":
        assert copies.nodes[name].machine.tenants == {}
        assert copies.nodes[name].machine.replication.due is None
    assert copies.nodes["p"].machine.replication.unconfirmed.nbytes == 0


# --- the synchronous mode -----------------------------------------------------------------------


def stepped() -> Copies:
    """Return copies with a backup that are asked to commit a step."""
    copies = trained(B, mode="sync")
    copies.push("w", push(1, 1.0, 0, 1, attempt=0))
    copies.commit(0, "w")
    return copies


def test_a_step_is_sent_once_and_reported_when_the_backup_has_it() -> None:
    copies = trained(B, mode="sync")
    for worker in ("w", "v"):
        copies.push(worker, push(1, 1.0 if worker == "w" else 3.0, 0, 1, attempt=0))
        assert copies.answered(worker) == [101], "a gradient is kept by who brings it"
    before = copies.sent["Replicate"]
    copies.commit(0, "w", "v")
    assert copies.committed == []
    copies.settle()
    assert copies.committed == [0]
    assert copies.sent["Replicate"] - before == 3, "a mean for each slice, and the end"
    assert copies.is_copied(*B)
    copies.commit(0, "w", "v")
    assert copies.committed == [0, 0]


def test_slices_and_parts_of_slices_that_nobody_pushed_get_the_version_all_the_same() -> None:
    copies = trained(B, mode="sync", size=4)
    copies.push("w", push(1, 1.0, attempt=0, parts=((0, 0, (4, 8)),), payload=(np.ones(4, np.float32),)))
    copies.commit(0, "w")
    copies.commit(0, "w")
    copies.settle()
    assert copies.committed == [0]
    copies.commit(1)
    copies.settle()
    assert copies.committed == [0, 1]
    assert copies.is_copied(*B)


def test_a_backup_that_is_filled_between_steps_is_the_same() -> None:
    copies = trained(mode="sync")
    copies.push("w", push(1, 1.0, 0, 1, attempt=0))
    copies.commit(0, "w")
    copies.assign_backup(*B)
    copies.retarget(B)
    for step in range(1, 4):
        for _ in range(2):
            if copies.busy:
                copies.deliver(copies.busy[0])
        copies.push("w", push(step + 1, float(step), 0, 1, step=step, attempt=step))
        copies.commit(step, "w")
    copies.wait(5.0)
    assert copies.committed == [0, 1, 2, 3]
    assert copies.is_copied(*B)


def test_gradients_that_a_new_backup_has_not_are_taken_when_they_are_brought_again() -> None:
    copies = trained(mode="sync")
    copies.push("w", push(1, 1.0, 0, 1, attempt=0))
    copies.assign_backup(*B)
    copies.retarget(B)
    copies.wait(1.0)
    copies.promote(*B)
    copies.join("w", "b", 2)
    copies.push("w", push(1, 1.0, 0, 1, epoch=2, attempt=0), "b")
    copies.order("b", m.Commit(2, 0, ((identity("worker", "w").incarnation, (0,)),)))
    copies.commit(0, "w")
    assert copies.nodes["b"].state(2)[1][0][:2] == (1, (1,)), "an update, not only a version"
    assert copies.nodes["b"].shard(2).slices[0].value.tolist() == (np.arange(8) - 1.0).tolist()


def test_a_step_that_the_old_leader_had_sent_in_part_is_committed_by_the_promoted_copy() -> None:
    copies = stepped()
    copies.deliver(("p", "b"))  # the mean of the first slice alone
    copies.promote(*B)
    copies.join("w", "b", 2)
    copies.push("w", push(1, 1.0, 0, 1, epoch=2, attempt=0), "b")
    contributors = ((identity("worker", "w").incarnation, (0,)),)
    copies.order("b", m.Commit(2, 0, contributors))
    assert copies.told("b", m.Committed) == [m.Committed(2, 0)]
    assert copies.is_copied(*B)


# --- what cannot be -----------------------------------------------------------------------------


@for_each("backups, stay", [({}, True), ({"rows": []}, False)])
def test_no_backups_are_no_backups_but_where_none_are_known(backups: dict[str, object], stay: bool) -> None:
    copies = pushed(B)
    copies.settle()
    copies.order("p", m.Lead(LEADER, 2, backups))
    assert (copies.nodes["p"].machine.tenants[LEADER].gate is not None) is stay


@for_each("rows", [{"rows": 1}, {"rows": [{}]}, {"rows": [{}] * 9}])
def test_rows_that_name_no_servers_are_refused(rows: dict[str, object]) -> None:
    copies = Copies()
    copies.begin()
    copies.order("p", m.Lead(LEADER, 1, rows))
    [error] = copies.told("p", m.Error)
    assert error.request == LEADER


def test_more_backups_than_a_shard_has_are_refused() -> None:
    copies = Copies()
    copies.begin()
    copies.order("p", m.Lead(LEADER, 1, {"rows": [row("b", 2)] * (MAX_BACKUPS + 1)}))
    [error] = copies.told("p", m.Error)
    assert f"up to {MAX_BACKUPS} backups" in str(error)


def test_a_treatment_that_needs_what_workers_have_read_has_no_copies() -> None:
    copies = Copies(job("a", "b", treatment={"name": "compensate", "lambda": 0.1}))
    copies.assign_backup(*B)
    [error] = copies.told("b", m.Error)
    assert (error.request, error.code) == (2, ConfigurationError.code)
    assert copies.nodes["b"].machine.tenants == {}


def test_records_of_somebody_else_are_refused() -> None:
    copies = trained(B)
    record = m.Replicate(2, 1, 1, bytes(16), 1, 0, "raw", (), (), (), (), ())
    copies.from_worker("b", "w", record)
    copies.from_worker("p", "w", record)
    assert (copies.refused("w", "b"), copies.refused("w")) == ([23], [11])


# --- a coordinator that was away ------------------------------------------------------------------


def test_a_coordinator_that_is_back_hears_of_the_last_step_when_the_backup_has_it() -> None:
    copies = stepped()
    copies.order("p", WELCOME)
    assert copies.committed == []
    copies.settle()
    assert copies.committed == [0]
    copies.order("p", WELCOME)
    assert copies.committed == [0, 0]
    copies.order("b", WELCOME)
    assert copies.told("b", m.Committed) == [], "a backup does not speak for the shard"


def test_a_worker_that_has_no_other_shard_on_a_server_is_known_to_the_backups_there() -> None:
    copies = trained(B)
    copies.order("b", assign(copies.spec, copies.where, epoch=9))
    copies.join("w", "b", 9)
    copies.push("w", push(1, 1.0, 0))
    copies.settle()
    known = copies.nodes["b"].remembered(2)
    assert known
    copies.order("b", m.Discard(9, 1))
    assert copies.nodes["b"].remembered(2) == known
    copies.promote("b", 2)
    copies.join("w", "b", 2)
    before = copies.nodes["b"].state(2)
    copies.push("w", push(1, 1.0, 0, epoch=2), "b")
    assert copies.answered("w", "b") == [101]
    assert copies.nodes["b"].state(2) == before, "applied twice"
