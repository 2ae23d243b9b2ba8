"""Ranges of a data set: every example once per pass, whatever the workers do; who waits and for whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.machines import TIMEOUT, Coordinator, errors, identity, job, peer, receivers, sent
from tests.tables import for_each
from zmqps.core.coordinator.training import data as module
from zmqps.core.job.data import DataSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.errors import ConfigurationError, IdentityError, JobMismatchError, LimitError

SPEC = DataSpec(name="data", num_examples=10, range_size=4)
ONE_RANGE = replace(SPEC, num_examples=4)
TWICE = replace(ONE_RANGE, passes=2)
#: As many data sets as there may be of all, and of a worker, where these limits are reached.
MAX_DATA_SETS, MAX_NAMED = 32, 8


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DATA_SETS", MAX_DATA_SETS)
    monkeypatch.setattr(module, "MAX_NAMED", MAX_NAMED)


def training(*workers: str, **options: Any) -> Coordinator:
    """Return a coordinator whose workers train a job."""
    coordinator = Coordinator.joined("s0", *workers)
    coordinator.init_all(job(**options), *workers)
    coordinator.build("s0", epoch=1)
    return coordinator


def waiting(*workers: str, spec: DataSpec = ONE_RANGE, **options: Any) -> tuple[Coordinator, m.Range]:
    """Return a coordinator whose first worker has the only range of a data set, for which the second one waits."""
    coordinator = training(*workers, **options)
    first = got(take(coordinator, workers[0], 5, spec=spec), workers[0])
    assert sent(take(coordinator, workers[1], 5, spec=spec), m.Range) == []
    return coordinator, first


def take(
    coordinator: Coordinator, name: str, request: int, used: m.Range | None = None, spec: DataSpec = SPEC
) -> list[Action]:
    return coordinator.take(name, spec.take(request, None if used is None else (used.data_pass, used.number)))


def got(actions: list[Action], name: str) -> m.Range:
    (found,) = sent(actions, m.Range, peer(name))
    return found


def position(found: m.Range) -> tuple[int, int, int]:
    return found.data_pass, found.start, found.stop


# --- handing out --------------------------------------------------------------------------------


def test_workers_take_ranges_in_turn_and_the_last_may_be_smaller() -> None:
    coordinator = training("w0", "w1")
    first = got(take(coordinator, "w0", 5), "w0")
    second = got(take(coordinator, "w1", 5), "w1")
    third = got(take(coordinator, "w1", 6, second), "w1")
    assert [position(r) for r in (first, second, third)] == [(0, 0, 4), (0, 4, 8), (0, 8, 10)]
    assert [r.number for r in (first, second, third)] == [0, 1, 2]


def test_a_request_that_is_sent_again_gets_the_same_range() -> None:
    coordinator = training("w0")
    first = take(coordinator, "w0", 5)
    assert sent(take(coordinator, "w0", 5), m.Range) == sent(first, m.Range)
    second = got(take(coordinator, "w0", 6, got(first, "w0")), "w0")
    assert got(take(coordinator, "w0", 6, got(first, "w0")), "w0") == second
    assert position(second) == (0, 4, 8)


def test_a_worker_that_has_not_used_its_range_gets_it_again() -> None:
    coordinator = training("w0")
    first = got(take(coordinator, "w0", 5), "w0")
    again = got(take(coordinator, "w0", 6), "w0")
    assert position(again) == position(first)


def test_the_next_pass_begins_when_all_of_this_one_is_done() -> None:
    coordinator = training("w0", "w1")
    spec = replace(SPEC, num_examples=8, passes=2)
    first, second = (got(take(coordinator, w, 5, spec=spec), w) for w in ("w0", "w1"))
    waits = take(coordinator, "w0", 6, first, spec)
    assert sent(waits, m.Range) == []
    (waiting,) = sent(waits, m.Waiting)
    assert waiting.text == "worker 1 (w1, host, pid 7) (range 1): the last ranges of pass 0 of data set 'data'"
    actions = take(coordinator, "w1", 6, second, spec)
    assert [position(got(actions, w)) for w in ("w0", "w1")] == [(1, 0, 4), (1, 4, 8)], "who waited longer is first"


def test_an_empty_range_says_that_all_passes_are_done_also_to_those_who_waited_and_who_come_late() -> None:
    coordinator, only = waiting("w0", "w1", "w2")
    actions = [*take(coordinator, "w0", 6, only, ONE_RANGE), *take(coordinator, "w2", 5, spec=ONE_RANGE)]
    assert [got(actions, w).stop for w in ("w0", "w1", "w2")] == [0, 0, 0]


@for_each("reason", ["closed", "lost"])
def test_the_range_of_a_worker_that_has_gone_is_handed_out_before_others(reason: str) -> None:
    coordinator = training("w0", "w1")
    lost = got(take(coordinator, "w0", 5), "w0")
    second = got(take(coordinator, "w1", 5), "w1")
    if reason == "closed":
        coordinator.take("w0", m.Leave("closed"))
    else:
        coordinator.wait(TIMEOUT + 1, "w1", "s0")
    third = got(take(coordinator, "w1", 6, second), "w1")
    assert position(third) == position(lost)


def test_a_lost_range_goes_to_who_waits_for_it() -> None:
    coordinator, lost = waiting("w0", "w1")
    assert position(got(coordinator.wait(TIMEOUT + 1, "w1", "s0"), "w1")) == position(lost)


def test_what_a_worker_had_of_several_data_sets_goes_to_all_who_wait_for_it() -> None:
    coordinator = training("w0", "w1", "w2")
    train, validation = ONE_RANGE, replace(ONE_RANGE, name="validation")
    for request, spec in ((5, train), (6, validation)):
        take(coordinator, "w0", request, spec=spec)
    take(coordinator, "w1", 5, spec=train)
    take(coordinator, "w2", 5, spec=validation)
    actions = coordinator.take("w0", m.Leave("closed"))
    assert [position(got(actions, name)) for name in ("w1", "w2")] == [(0, 0, 4)] * 2


def test_a_worker_that_finishes_has_used_its_range() -> None:
    coordinator, _ = waiting("w0", "w1")
    assert got(coordinator.take("w0", m.Leave("finished")), "w1").stop == 0


def test_data_sets_of_different_names_do_not_share() -> None:
    coordinator = training("w0")
    other = replace(SPEC, name="validation", num_examples=3)
    assert position(got(take(coordinator, "w0", 5), "w0")) == (0, 0, 4)
    assert position(got(take(coordinator, "w0", 6, spec=other), "w0")) == (0, 0, 3)


# --- refused ------------------------------------------------------------------------------------


@for_each("change", [{"num_examples": 11}, {"range_size": 5}, {"passes": 2}, {"shuffle_seed": 0}])
def test_a_worker_that_describes_the_data_otherwise_is_refused(change: dict[str, int]) -> None:
    coordinator = training("w0", "w1")
    take(coordinator, "w0", 5)
    assert errors(take(coordinator, "w1", 5, spec=replace(SPEC, **change))) == [JobMismatchError.code]


@for_each("change", [{"num_examples": 0}, {"range_size": 0}, {"passes": 0}, {"num_examples": 1 << 60}])
def test_a_data_set_that_cannot_be_handed_out_is_refused(change: dict[str, int]) -> None:
    coordinator = training("w0")
    fields = {"num_examples": 1, "range_size": 1, "passes": 1, **change}
    message = m.Take(5, "data", **fields, shuffle=(), done=())
    assert errors(coordinator.take("w0", message)) == [ConfigurationError.code]


def numbered(coordinator: Coordinator, name: str, count: int, *, prefix: str = "", used_up: bool = False) -> None:
    """Let a worker name so many data sets."""
    for number in range(count):
        spec = replace(SPEC, name=f"{prefix or name} {number}", num_examples=4)
        first = got(take(coordinator, name, 2 * number + 2, spec=spec), name)
        if used_up:
            got(take(coordinator, name, 2 * number + 3, first, spec), name)


@pytest.mark.usefixtures("narrow")
def test_data_sets_of_a_worker_are_limited_and_others_have_room() -> None:
    coordinator = training("w0", "w1")
    numbered(coordinator, "w0", MAX_NAMED)
    assert errors(take(coordinator, "w0", 9998, spec=replace(SPEC, name="one more"))) == [LimitError.code]
    assert errors(take(coordinator, "w0", 9999, spec=replace(SPEC, name="w0 3", num_examples=4))) == []
    assert position(got(take(coordinator, "w1", 5), "w1")) == (0, 0, 4)


@pytest.mark.usefixtures("narrow")
def test_a_worker_may_name_a_data_set_for_each_of_many_epochs() -> None:
    coordinator = training("w0")
    numbered(coordinator, "w0", MAX_NAMED + 5, used_up=True)
    assert len(coordinator.run().data.by_name) == MAX_NAMED + 5


@pytest.mark.usefixtures("narrow")
def test_data_sets_are_limited() -> None:
    names = [f"w{number}" for number in range(MAX_DATA_SETS // MAX_NAMED)]
    coordinator = training("w99", *names)
    for name in names:
        numbered(coordinator, name, MAX_NAMED)
    one_more = replace(SPEC, name="one more")
    assert errors(take(coordinator, "w99", 9998, spec=one_more)) == [LimitError.code]
    coordinator.take("w0", m.Leave("closed"))  # with data sets of which nothing is done
    assert position(got(take(coordinator, "w99", 9999, spec=one_more), "w99")) == (0, 0, 4)


@pytest.mark.usefixtures("narrow")
def test_where_there_is_no_room_one_goes_that_is_used_up_and_that_nobody_there_has_asked_for() -> None:
    coordinator = training("w0", "w1")
    numbered(coordinator, "w0", MAX_DATA_SETS - 1, used_up=True)
    mine = replace(SPEC, name="mine")
    take(coordinator, "w1", 5, spec=mine)
    assert errors(take(coordinator, "w1", 6, spec=replace(SPEC, name="one more"))) == [LimitError.code]
    coordinator.take("w0", m.Leave("closed"))
    assert position(got(take(coordinator, "w1", 7, spec=replace(SPEC, name="one more")), "w1")) == (0, 0, 4)
    assert set(coordinator.run().data.by_name) >= {"mine", "one more", "w0 1"}
    assert "w0 0" not in coordinator.run().data.by_name


# --- of strangers -------------------------------------------------------------------------------


@pytest.mark.usefixtures("narrow")
def test_data_sets_that_a_stranger_has_named_end_with_it_and_what_was_used_of_others_is_kept() -> None:
    coordinator = training("w0", "w1")
    coordinator.join("w7")
    numbered(coordinator, "w7", MAX_NAMED // 2, prefix="taken")
    numbered(coordinator, "w7", MAX_NAMED // 2, prefix="used", used_up=True)
    assert errors(take(coordinator, "w7", 9998, spec=replace(SPEC, name="one more"))) == [LimitError.code]
    first = got(take(coordinator, "w0", 5), "w0")
    got(take(coordinator, "w0", 6, first), "w0")
    for name in ("w7", "w0"):
        coordinator.take(name, m.Leave("closed"))
    assert set(coordinator.run().data.by_name) == {"data"}
    assert position(got(take(coordinator, "w1", 5), "w1")) == (0, 4, 8)


def test_a_data_set_of_which_nothing_is_used_ends_with_those_who_have_asked_for_it() -> None:
    coordinator = training("w0", "w1")
    take(coordinator, "w0", 5)
    coordinator.take("w0", m.Leave("closed"))
    assert coordinator.run().data.by_name == {}
    other = replace(SPEC, num_examples=20)
    assert position(got(take(coordinator, "w1", 5, spec=other), "w1")) == (0, 0, 4)


@pytest.mark.usefixtures("narrow")
def test_strangers_leave_room_for_those_who_count_while_they_are_there() -> None:
    coordinator = training("w0")
    strangers = [f"w{number}" for number in range(10, 10 + MAX_DATA_SETS // MAX_NAMED)]
    coordinator.join(*strangers, "w99")
    for name in strangers:
        numbered(coordinator, name, MAX_NAMED)
    assert errors(take(coordinator, "w99", 5)) == [LimitError.code]
    assert position(got(take(coordinator, "w0", 5), "w0")) == (0, 0, 4)


def test_what_a_stranger_has_said_of_a_data_set_gives_way_to_those_who_count() -> None:
    coordinator = training("w0", "w1", mode="sync")
    coordinator.join("w7", "w8")
    wrong = ONE_RANGE
    take(coordinator, "w7", 5, spec=wrong)
    assert sent(take(coordinator, "w8", 5, spec=wrong), m.Range) == []
    actions = take(coordinator, "w0", 5)
    assert errors(actions, peer("w8")) == [JobMismatchError.code], "it had waited for a range of it"
    assert position(got(actions, "w0")) == (0, 0, 4)
    assert errors(take(coordinator, "w7", 6, spec=wrong)) == [JobMismatchError.code]
    assert position(got(take(coordinator, "w7", 7), "w7")) == (0, 4, 8), "where whoever comes trains, it may use it"


def test_a_data_set_that_strangers_share_lasts_until_the_last_of_them_has_gone() -> None:
    coordinator = training("w0")
    coordinator.join("w7", "w8")
    first = got(take(coordinator, "w7", 5), "w7")
    got(take(coordinator, "w7", 6, first), "w7")
    take(coordinator, "w8", 5)
    coordinator.take("w7", m.Leave("closed"))
    assert position(got(take(coordinator, "w8", 6), "w8")) == (0, 8, 10)
    coordinator.take("w8", m.Leave("closed"))
    assert coordinator.run().data.by_name == {}


def test_an_observer_takes_no_range() -> None:
    coordinator = training("w0")
    coordinator.join("o0")
    assert errors(take(coordinator, "o0", 5)) == [IdentityError.code]


@for_each(
    "options",
    [{"name": ""}, {"name": 3}, {"num_examples": 0}, {"range_size": 1.5}, {"passes": True}, {"shuffle_seed": -1}],
)
def test_a_description_is_checked_before_it_travels(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        DataSpec(**{"name": "data", "num_examples": 1, "range_size": 1, **options})  # type: ignore[arg-type]


# --- waiting ------------------------------------------------------------------------------------


def test_who_gives_up_gets_no_range_and_the_next_request_does() -> None:
    coordinator, _ = waiting("w0", "w1")
    coordinator.take("w1", m.Withdraw(5))
    assert sent(coordinator.take("w0", m.Leave("closed")), m.Range) == []
    assert position(got(take(coordinator, "w1", 6, spec=ONE_RANGE), "w1")) == (0, 0, 4)


def test_the_status_says_what_is_done_and_who_has_what() -> None:
    coordinator = training("w0", "w1", "w2")
    spec = replace(SPEC, num_examples=8, passes=3)
    first = got(take(coordinator, "w0", 5, spec=spec), "w0")
    take(coordinator, "w1", 5, spec=spec)
    take(coordinator, "w0", 6, first, spec)
    (status,) = sent(coordinator.take("w0", m.StatusRequest(9)), m.Status)
    assert status.status["jobs"]["default"]["data"] == [
        {
            **{"name": "data", "pass": 0, "passes": 3, "done": 1, "ranges": 2, "examples": 8, "returned": 0},
            **{"taken": {"worker 1 (w1, host, pid 7)": 1}, "waiting": ["worker 0 (w0, host, pid 7)"]},
        }
    ]
    assert any("range 1" in text for text in status.status["waiting"])


def test_a_synchronous_step_does_not_wait_for_who_waits_for_data() -> None:
    coordinator, first = waiting("w0", "w1", mode="sync", spec=TWICE)
    for step in range(3):  # w1 waits for w0's range, which w0 uses up in three steps of its own
        actions = coordinator.take("w0", m.Arrive(20 + step, step, (step + 1,)))
        assert sent(actions, m.Proceed, peer("w0")) == [m.Proceed(20 + step, step + 1, 1)]
        coordinator.take("s0", m.Committed(1, step))
    actions = take(coordinator, "w0", 6, first, TWICE)
    assert got(actions, "w1").step == 3, "it goes on with the step that the others are at"
    actions = coordinator.take("w1", m.Arrive(6, 3, (1,)))
    assert receivers(actions, m.Proceed) == [peer("w1")], "now it is w0 who waits for a range"


def test_a_synchronous_step_waits_again_for_who_has_given_up_to_wait_for_data() -> None:
    coordinator, _ = waiting("w0", "w1", mode="sync")
    coordinator.take("w1", m.Withdraw(5))
    assert sent(coordinator.take("w0", m.Arrive(6, 0, (1,))), m.Proceed) == [], "w1 may push for this step now"
    actions = coordinator.take("w1", m.Arrive(6, 0, (1,)))
    assert sorted(receivers(actions, m.Proceed)) == [peer("w0"), peer("w1")]
    assert len(sent(actions, m.Commit)[0].contributors) == 2


def test_a_synchronous_step_does_not_wait_for_who_waits_for_another_data_set_still() -> None:
    coordinator = training("w0", "w1", mode="sync")
    specs = [replace(SPEC, name=name, num_examples=4, passes=2) for name in ("one", "two")]
    first = [got(take(coordinator, "w0", 5 + i, spec=spec), "w0") for i, spec in enumerate(specs)]
    for i, spec in enumerate(specs):
        take(coordinator, "w1", 5 + i, spec=spec)
    got(take(coordinator, "w0", 7, first[0], specs[0]), "w1")
    assert len(sent(coordinator.take("w0", m.Arrive(8, 0, (1,))), m.Proceed)) == 1, "w1 has a range of one, none of two"
    got(take(coordinator, "w0", 9, first[1], specs[1]), "w1")


def test_a_step_that_only_waits_for_who_begins_to_wait_for_data_is_complete() -> None:
    coordinator = training("w0", "w1", mode="sync")
    take(coordinator, "w0", 5, spec=ONE_RANGE)
    assert sent(coordinator.take("w0", m.Arrive(6, 0, (1,))), m.Proceed) == []
    actions = take(coordinator, "w1", 5, spec=ONE_RANGE)
    assert receivers(actions, m.Proceed) == [peer("w0")]
    assert sent(actions, m.Commit)[0].contributors == ((identity("worker", "w0").incarnation, (1,)),)


def test_who_waits_for_data_after_its_gradients_counts_and_is_told_of_its_step() -> None:
    coordinator = training("w0", "w1", mode="sync")
    take(coordinator, "w0", 5, spec=ONE_RANGE)
    coordinator.take("w1", m.Arrive(5, 0, (1,)))
    take(coordinator, "w1", 6, spec=ONE_RANGE)
    actions = coordinator.take("w0", m.Arrive(6, 0, (1,)))
    assert sorted(receivers(actions, m.Proceed)) == [peer("w0"), peer("w1")]
    assert len(sent(actions, m.Commit)[0].contributors) == 2


def test_a_bounded_worker_does_not_wait_for_who_waits_for_data() -> None:
    coordinator, first = waiting("w0", "w1", mode="bounded", staleness=1, spec=TWICE)
    for step in range(5):
        assert len(sent(coordinator.take("w0", m.Arrive(20 + step, step, (step + 1,))), m.Proceed)) == 1
    assert got(take(coordinator, "w0", 6, first, TWICE), "w1").step == 5
    assert len(sent(coordinator.take("w1", m.Arrive(6, 5, (1,))), m.Proceed)) == 1


# --- any sequence -------------------------------------------------------------------------------


class Handing(RuleBasedStateMachine):
    """Workers take, use, lose, close and finish at random; every example is used once in each pass."""

    SPEC = DataSpec(name="data", num_examples=23, range_size=4, passes=3)

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = training("w0", mode="sync")
        self.alive: dict[str, m.Range | None] = {"w0": None}
        self.waiting: dict[str, int] = {}
        self.used: Counter[tuple[int, int]] = Counter()
        self.now_in_pass = 0
        self.ended: set[str] = set()
        self.number = 1
        self.request = 10

    def note(self, actions: list[Action]) -> None:
        for name in list(self.waiting):
            for found in sent(actions, m.Range, peer(name)):
                assert found.request == self.waiting.pop(name)
                if found.stop == 0:
                    self.ended.add(name)
                else:
                    assert found.data_pass >= self.now_in_pass
                    self.now_in_pass = found.data_pass
                    self.alive[name] = found

    def use(self, name: str) -> m.Range | None:
        found = self.alive[name]
        if found is not None:
            self.used.update((found.data_pass, i) for i in range(found.start, found.stop))
        self.alive[name] = None
        return found

    def one(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.alive)))

    @precondition(lambda self: len(self.alive) < 4)
    @rule()
    def joins(self) -> None:
        name = f"w{self.number}"
        self.number += 1
        self.coordinator.join(name)
        self.coordinator.init(name, replace(job(), mode="sync"), request=3)
        self.alive[name] = None

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), really=st.booleans(), twice=st.booleans())
    def takes(self, data: st.DataObject, really: bool, twice: bool) -> None:
        name = self.one(data)
        if name not in self.waiting and name not in self.ended:
            used = self.use(name) if really else None
            self.request += 1
            self.waiting[name] = self.request
            for _ in range(1 + twice):
                actions = take(self.coordinator, name, self.request, used, self.SPEC)
                if name in self.waiting:
                    self.note(actions)

    @precondition(lambda self: self.waiting)
    @rule()
    def gives_up(self) -> None:
        name, request = self.waiting.popitem()
        self.coordinator.take(name, m.Withdraw(request))

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data(), how=st.sampled_from(["closed", "finished", "lost"]))
    def goes(self, data: st.DataObject, how: str) -> None:
        name = self.one(data)
        if how == "finished":
            self.use(name)
        del self.alive[name]
        self.waiting.pop(name, None)
        self.ended.discard(name)
        if how == "lost":
            actions = self.coordinator.wait(self.coordinator.now + TIMEOUT + 1, "s0", *self.alive)
        else:
            actions = self.coordinator.take(name, m.Leave(how))
        self.note(actions)

    @invariant()
    def nothing_is_used_twice(self) -> None:
        assert all(times == 1 for times in self.used.values())

    @invariant()
    def nobody_waits_while_there_is_something_to_take(self) -> None:
        assert not self.waiting or any(self.alive.values())

    def teardown(self) -> None:
        """Whoever is left uses up the rest; then everything was used in every pass."""
        for _ in range(200):
            for name in list(self.alive):
                if name not in self.waiting and name not in self.ended:
                    self.request += 1
                    self.waiting[name] = self.request
                    self.note(take(self.coordinator, name, self.request, self.use(name), self.SPEC))
        assert self.ended == set(self.alive)
        assert self.used == Counter({(p, i): 1 for p in range(3) for i in range(23)})


TestHanding = Handing.TestCase
TestHanding.settings = settings(max_examples=15, stateful_step_count=40)
