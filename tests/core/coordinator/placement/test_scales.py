"""Another number of servers: what is refused, and what is to be done next follows from where a job lies."""

from __future__ import annotations

from tests.core.coordinator.placement.test_drains import Cluster
from tests.core.machines import CUT, errors, logged, of_leader, peer, receivers, sent, sent_to
from zmqps.core.coordinator.placement.scales import MAX_ASKED, plan
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages.resizing import DrainState
from zmqps.errors import JobMemoryError, ScaleError

NONCE = b"n" * 16


def scale(cluster: Cluster, servers: int, nonce: bytes = NONCE) -> list[Action]:
    return cluster.take("outsider", m.Scale(1, servers, nonce))


def built(cluster: Cluster, actions: list[Action]) -> list[Action]:
    return cluster.reply(actions, m.Assign, lambda assign: m.Ready(assign.epoch, 0))


def held(cluster: Cluster, actions: list[Action]) -> list[Action]:
    return cluster.reply(actions, m.Hold, lambda hold: m.Holding(hold.number))


def replicated() -> Cluster:
    cluster = Cluster(3, replicas=1)
    for copy in list(cluster.run().startup.copies):
        for loaded in (0, 1):
            cluster.take(copy.server.hello.name, m.Ready(copy.epoch, loaded))
    return cluster


def yielded(cluster: Cluster, actions: list[Action], **numbers: dict[str, int]) -> list[Action]:
    copies = cluster.run().startup.copies

    def answer(order: m.Yield) -> m.Yielded:
        backups = copies.backups(copies[order.epoch].shard)
        return m.Yielded(order.epoch, order.generation, 0, numbers.get("numbers", {str(b.epoch): 0 for b in backups}))

    return cluster.reply(actions, m.Yield, answer)


def filled(cluster: Cluster, actions: list[Action]) -> list[Action]:
    return cluster.reply(actions, m.Cut, lambda cut: m.Ready(cut.epoch, 1))


def test_too_few_servers_are_refused_with_how_many_are_missing() -> None:
    cluster = Cluster(2)
    assert errors(scale(cluster, 4), peer("outsider")) == [ScaleError.code]
    assert cluster.machine.scales.wanted is None
    assert cluster.machine.servers.wanted == 2


def test_backups_need_other_servers() -> None:
    cluster = Cluster(3, replicas=1)
    assert errors(scale(cluster, 1), peer("outsider")) == [ScaleError.code]


def test_backups_are_cut_like_their_leaders_and_begin_with_the_same() -> None:
    cluster = replicated()
    cutting = held(cluster, built(cluster, cluster.fill(scale(cluster, 2))))
    assert not sent(cutting, m.Cut)
    filling = yielded(cluster, cutting)
    copies = cluster.run().startup.copies
    for to, cut in sent_to(filling, m.Cut):
        assert {copies[parent].server.hello.name for parent in cut.parents} == {to}
    assert {copies[cut.epoch].backup for cut in sent(filling, m.Cut)} == {True, False}
    leaders = [copy for copy in copies.coming.values() if not copy.backup]
    for leader in leaders:
        assert [row["number"] for row in copies.rows_of_backups(leader)["rows"]] == [0]
    filled(cluster, filling)
    assert not copies.coming
    for shard in range(cluster.run().startup.num_shards):
        assert len(copies.backups(shard)) == 1


def test_a_backup_that_lacks_something_keeps_shards_from_being_cut() -> None:
    cluster = replicated()
    back = yielded(cluster, held(cluster, built(cluster, cluster.fill(scale(cluster, 2)))), numbers={})
    assert set(receivers(back, m.Hold, ends=1)) == {peer("w0"), peer("w1")}
    assert not sent(back, m.Cut)
    assert not cluster.run().startup.copies.coming


def test_shards_get_copies_where_they_are_to_be_and_no_others_remain() -> None:
    cluster = Cluster.joined("s2", servers=2)
    replication, copies = cluster.run().replication, cluster.run().startup.copies
    third = list(cluster.machine.servers)[2]
    actions, why = replication.spread({0: [third]}, 1.0)
    assert why == ""
    assert [assign.backup for assign in sent(actions, m.Assign)] == [1]
    assert receivers(actions, m.Lead, backups=of_leader) == [copies.leader(0).server.peer]
    assert replication.spread({0: [third]}, 1.0) == ([], "")
    actions, why = replication.spread({}, 1.0)
    assert [len(lead.backups["rows"]) for lead in sent(actions, m.Lead, backups=of_leader)] == [0]
    assert not any(copy.backup for copy in copies)


def test_no_copy_is_given_up_as_long_as_another_one_is_on_a_server_that_is_silent() -> None:
    cluster = Cluster.joined("s2", servers=2)
    replication, copies = cluster.run().replication, cluster.run().startup.copies
    first, _, third = cluster.machine.servers
    replication.spread({0: [third]}, 1.0)
    [backup] = copies.backups(0)
    backup.whole = True
    first.seen_at, third.seen_at = 1.0, 5.0
    assert replication.spread({}, 5.0, 2.0) == ([], "")
    assert copies.backups(0) == [backup]
    first.seen_at = 4.0
    replication.spread({}, 5.0, 2.0)
    assert not copies.backups(0)


def test_what_workers_read_cannot_be_cut() -> None:
    cluster = Cluster(2, treatment={"name": "compensate", "lambda": 0.5})
    assert errors(scale(cluster, 1), peer("outsider")) == [ScaleError.code]


def test_shards_are_cut_once_no_push_is_under_way_and_members_are_told() -> None:
    cluster = Cluster.joined("s2", "s3", servers=2)
    asked = scale(cluster, 4)
    assert sent(asked, m.Draining, peer("outsider"))[0].state == DrainState.GOING
    assert {bool(assign.restore["cut"]) for assign in sent(asked, m.Assign)} == {True}
    pausing = built(cluster, asked)
    assert set(receivers(pausing, m.Hold, ends=0)) == {peer("w0"), peer("w1")}
    assert not sent(pausing, m.Cut)
    cutting = yielded(cluster, held(cluster, pausing))
    old = set(cluster.run().startup.copies.by_epoch)
    done = filled(cluster, cutting)
    assert set(receivers(done, m.View, change=CUT)) == {peer("w0"), peer("w1")}
    assert {discard.epoch for discard in sent(done, m.Discard)} == old
    placement = cluster.run().startup.placement
    assert placement is not None
    for worker in ("w0", "w1"):
        (told,) = sent(done, m.View, peer(worker), change=CUT)
        assert len(told.placement["servers"]) == placement.num_shards
        cluster.take(worker, m.Followed(told.epoch, told.revision, 0))
    assert not cluster.run().replication.recuts.is_cutting


def test_a_cut_that_a_leader_is_not_ready_for_is_taken_back() -> None:
    cluster = Cluster.joined("s2", servers=2)
    stopping = held(cluster, built(cluster, scale(cluster, 3)))
    (first, *_), (to, *_) = sent(stopping, m.Yield), receivers(stopping, m.Yield)
    generation = first.generation
    back = cluster.take(to[1:].decode(), m.Yielded(first.epoch, generation, 1))
    assert set(receivers(back, m.Hold, ends=1)) == {peer("w0"), peer("w1")}
    assert {replicas.generation for replicas in sent(back, m.Lead, backups=of_leader)} == {generation + 1}
    assert not cluster.run().startup.copies.coming
    cluster.reply(back, m.Lead, lambda replicas: m.Leading(replicas.epoch, replicas.generation, 0), backups=of_leader)
    assert cluster.machine.scales.wanted is not None  # and it is tried again


def test_a_cut_that_finds_gradients_of_a_step_waits_for_its_end_and_no_longer() -> None:
    cluster = Cluster.joined("s2", servers=2, mode="sync")
    pausing = built(cluster, scale(cluster, 3))
    assert set(receivers(pausing, m.Hold, ends=0)) == {peer("w0"), peer("w1")}, "nobody has arrived, as far as is known"
    stopping = held(cluster, pausing)
    back = cluster.give_up(stopping, busy=1)
    assert set(receivers(back, m.Hold, ends=1)) == {peer("w0"), peer("w1")}, "only they can end it"
    for asked, kept in zip(sent(stopping, m.Yield), sent(back, m.Lead, backups=of_leader), strict=True):
        assert (kept.epoch, kept.generation > asked.generation) == (asked.epoch, True)
    cluster.fill(back)
    cluster.take("w0", m.Arrive(10, 0, (1,)))
    again = cluster.take("w1", m.Arrive(10, 0, (1,)))
    assert not sent(again, m.Hold, ends=0), "servers have its gradients until it is committed"
    again += cluster.reply(again, m.Commit, lambda commit: m.Committed(commit.epoch, 0))
    assert set(receivers(again, m.Hold, ends=0)) == {peer("w0"), peer("w1")}
    assert not sent(again, m.Proceed)
    done = filled(cluster, yielded(cluster, held(cluster, again)))
    assert set(receivers(done, m.View, change=CUT)) == set(receivers(done, m.Proceed)) == {peer("w0"), peer("w1")}


def test_a_leader_that_has_gradients_between_steps_is_asked_again_a_while_later() -> None:
    cluster = Cluster.joined("s2", servers=2, mode="sync")
    cluster.fill(cluster.give_up(held(cluster, built(cluster, scale(cluster, 3))), busy=1))
    again = [*cluster.take("w0", m.Arrive(10, 0, (1,))), *cluster.take("w1", m.Arrive(10, 0, (1,)))]
    again += cluster.reply(again, m.Commit, lambda commit: m.Committed(commit.epoch, 0))
    back = cluster.give_up(held(cluster, again), busy=1)
    assert "is not recut yet" in logged(back)
    assert set(receivers(back, m.Proceed)) == {peer("w0"), peer("w1")}
    assert not cluster.run().startup.copies.coming


def test_a_server_that_is_lost_ends_what_needs_it() -> None:
    cluster = Cluster.joined("s2", "s3", servers=2)
    scale(cluster, 4)
    assert cluster.machine.servers.wanted == 4
    cluster.take("s3", m.Leave("closed"))
    assert errors(scale(cluster, 4), peer("outsider")) == [ScaleError.code]
    assert cluster.machine.servers.wanted == 2, "a new job does not wait for the one that has gone"
    assert not cluster.run().startup.copies.coming


def test_a_job_that_lies_as_it_is_to_has_nothing_to_be_done() -> None:
    cluster = Cluster(2)
    to_do = plan(cluster.run(), list(cluster.machine.servers), 0)
    assert to_do.cut is None
    assert not to_do.spread


def test_each_shard_that_is_to_be_has_a_server_of_its_own() -> None:
    cluster = Cluster.joined("s2", servers=2)
    to_do = plan(cluster.run(), list(cluster.machine.servers), 0)
    assert to_do.cut is not None
    assert len(to_do.homes) == to_do.cut.num_shards
    assert {server.hello.name for (server,) in to_do.homes} <= {"s0", "s1", "s2"}


def test_what_a_server_had_no_memory_for_is_tried_again_when_it_is_asked_for_again() -> None:
    cluster = Cluster(2)
    first = scale(cluster, 1)
    (lacking,), (to,) = sent(first, m.Assign), receivers(first, m.Assign)
    memory = JobMemoryError(server="s0", what="shard 1", needed_nbytes=9, free_nbytes=1)
    cluster.take(to[1:].decode(), m.Error.of(lacking.epoch, memory))
    assert errors(scale(cluster, 1), peer("outsider")) == [ScaleError.code]
    assert cluster.machine.scales.wanted is None
    again = scale(cluster, 1, b"m" * 16)
    assert receivers(again, m.Assign) == [to]
    assert sent(again, m.Draining, peer("outsider"))[0].state == DrainState.GOING


def test_of_those_who_ask_so_many_are_remembered() -> None:
    cluster = Cluster.joined("s2", "s3", servers=2)
    for number in range(MAX_ASKED + 9):
        scale(cluster, 4, number.to_bytes(16, "big"))
    assert len(cluster.machine.scales.dump()[3]) == MAX_ASKED


def test_the_pause_that_is_told_is_of_this_change_alone() -> None:
    cluster = Cluster.joined("s2", "s3", servers=2)
    recuts = cluster.run().replication.recuts
    recuts.longest_s = 3.0  # of a change before
    scale(cluster, 4)
    assert recuts.longest_s == 0.0


def test_a_pause_begins_when_the_first_worker_has_nothing_under_way() -> None:
    cluster = Cluster.joined("s2", "s3", servers=2)
    (number,) = {hold.number for hold in sent(built(cluster, scale(cluster, 4)), m.Hold, ends=0)}
    cluster.now += 1.0
    cluster.take("w0", m.Holding(number))
    cluster.now += 2.0
    done = filled(cluster, yielded(cluster, cluster.take("w1", m.Holding(number))))
    assert "after a pause of 2.000 s, of which it took 0.000 s" in logged(done)
    assert cluster.run().replication.recuts.longest_s == 2.0
