"""How many workers a job expects, who has a place among them, and who is missed."""

from __future__ import annotations

import pytest

from tests.core.machines import hello, job, peer, receivers, sent
from zmqps.core.coordinator.membership import MemberInfo, Roster
from zmqps.core.coordinator.places import Places
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.messages import Enter, Error, Waiting
from zmqps.errors import JobError


class Job:
    """A job's workers, and what is named so far."""

    def __init__(self, expected: int | None) -> None:
        self.named: JobSpec | None = None
        self.members: dict[bytes, MemberInfo] = {}
        self.workers = Roster()
        self.places = Places("j", expected, self.members, self.workers, lambda: self.named, lambda *_: [])

    def join(self, *names: str) -> list[MemberInfo]:
        joined = [self.workers.enter(hello("worker", name), peer(name), 0.0) for name in names]
        self.members.update((member.incarnation, member) for member in joined)
        return joined

    def name(self, *members: MemberInfo) -> None:
        for member in members:
            first, self.named = self.named is None, self.named or job("w")
            self.places.count(member, True, first)


def test_the_job_says_how_many_it_expects_or_the_cluster_does() -> None:
    there = Job(2)
    assert (there.places.expected, there.places.num_missing) == (2, 2)
    there.named = job("w", workers=3)
    assert (there.places.expected, there.places.num_missing) == (3, 3)


def test_a_spare_takes_the_place_of_one_that_is_lost_and_nobody_is_missed() -> None:
    there = Job(2)
    a, b, c = there.join("a", "b", "c")
    there.name(a, b, c)
    there.places.note_joined()
    training = {a.incarnation, b.incarnation, c.incarnation}
    for member in (a, b, c):
        there.places.begin(member)
    assert [there.places.counts(member) for member in (a, b, c)] == [True, True, False]
    kept = there.places.keep(c, Enter(5, "b"))
    assert kept is not None
    assert receivers(kept, Waiting) == [peer("c")]
    there.places.leave(a, "lost")
    del there.members[a.incarnation]
    training.remove(a.incarnation)
    assert (there.places.num_workers, there.places.num_missing) == (1, 0)
    assert there.places.fill(training) == [c]
    assert (there.places.num_workers, there.places.losses.text) == (2, "")
    assert there.places.keep(c, Enter(5, "b")) is None
    there.places.spares.take(c)
    there.places.validate(training)


def test_who_has_not_named_a_job_of_so_many_workers_takes_no_part() -> None:
    there = Job(1)
    a, b = there.join("a", "b")
    there.name(a)
    with pytest.raises(JobError, match=r"expects 1 worker"):
        there.places.keep(b, Enter(1, "b"))
    assert not there.places.lasts(b)


def test_whoever_comes_counts_where_no_number_is_expected() -> None:
    there = Job(None)
    (a,) = there.join("a")
    assert (there.places.awaited, there.places.num_workers) == (there.workers, 1)
    assert there.places.counts(a)
    assert there.places.keep(a, Enter(1, "b")) is None
    assert a.incarnation in there.places.attendance


def test_the_first_that_names_another_job_takes_the_places_of_those_before() -> None:
    there = Job(1)
    a, b = there.join("a", "b")
    there.name(a)
    there.name(b)
    there.places.keep(b, Enter(7, "b"))
    (told,) = sent(there.places.count(b, True, True), Error)
    assert (told.request, list(there.places.attendance), a.named) == (7, [b], False)
