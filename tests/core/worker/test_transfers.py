"""Transfers and the consistency gate: what is held, for how long, and that a read is of one version."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.core.machines import E, failed, job, logged, resolved, sent
from tests.core.worker.test_session import S0, S1, WELCOME, Session, error, values_of
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.arrays import borrow
from zmqps.core.protocol.events import COORDINATOR, Action, Connected, Disconnected, Landed, Log, Resolve
from zmqps.core.worker.operations import Advance, Cancelled, Exchange, Finish
from zmqps.core.worker.pace import Gate
from zmqps.core.worker.views import Views, ViewTarget
from zmqps.errors import DeadlineError, JobError, NonFiniteGradientError, PeerLostError, ServerMemoryError, VersionError


class Training(Session):
    """A session that trains, with four parameters of a slice each on two servers."""

    def __init__(self, mode: str = "sync", **options: Any) -> None:
        super().__init__(job(*"abcd", mode=mode, **options))
        self.attach()

    def whole(self, kind: str, value: float = 1.0, **pull: Any) -> Exchange:
        return self.transfer(kind, value, whole=True, **pull)

    def partial(self, kind: str, *parameters: int) -> Exchange:
        return self.transfer(kind, parameters=frozenset(parameters))

    def brought(self, kind: str = "push") -> list[Action]:
        """Bring a whole step; return what comes of its acknowledgement."""
        return self.answer(self.ask(self.whole(kind)))

    def arrived(self, kind: str = "push", timeout: float = 5.0) -> m.Arrive:
        """Bring a whole step; return what the coordinator is told."""
        (arrive,) = sent(self.answer(self.ask(self.whole(kind), timeout)), m.Arrive, COORDINATOR)
        return arrive

    def proceed(self, actions: list[Action], version: int = 1, counted: int = 1) -> list[Action]:
        """Let the worker go on that arrived."""
        (arrive,) = sent(actions, m.Arrive)
        return self.get(m.Proceed(arrive.request, version, counted))

    def step(self, version: int) -> list[Action]:
        """Take a whole step."""
        return self.proceed(self.brought(), version)

    def fail(self, arrive: m.Arrive) -> list[Action]:
        """Let the wait for a step end with an error."""
        return self.get(
            m.Error.of(arrive.request, DeadlineError(operation="step", seconds=2.0, waiting_for="worker 1"))
        )


def outcome(actions: list[Action], operation: Any) -> Any:
    """Return what an operation was resolved with."""
    (value,) = [value for o, value in resolved(actions) if o is operation]
    return value


def failure(actions: list[Action], operation: Any, kind: type[E]) -> E:
    """Return with what an operation has failed."""
    error = outcome(actions, operation)
    assert isinstance(error, kind)
    return error


# --- the gate -----------------------------------------------------------------------------------


def test_what_comes_after_a_push_of_everything_is_held_until_the_worker_may_go_on() -> None:
    training = Training()
    push, pull = training.whole("push"), training.whole("pull")
    actions = training.ask(push)
    assert {(got.step, got.attempt, got.examples) for got in sent(actions, m.Push)} == {(0, 1, 1)}
    assert training.ask(pull) == []
    acked = training.answer(actions)
    assert outcome(acked, push) is None, "a push is done when it is acknowledged"
    (arrive,) = sent(acked, m.Arrive, COORDINATOR)
    assert (arrive.step, list(arrive.attempts)) == (0, [1])
    assert {got.version for got in sent(acked, m.Pull)} == {1}, "servers keep it until then"
    assert sent(training.proceed(acked), m.Pull) == []
    assert outcome(training.read(acked, {S0: 1, S1: 1}), pull) is None
    assert training.machine.statistics().clock == 1


def test_what_the_coordinator_asks_under_the_same_number_is_no_answer_to_an_arrival() -> None:
    training = Training()
    arrive = training.arrived()
    training.get(m.Fetch(arrive.request, 1, b"w" * 16, 0))
    training.get(m.Proceed(arrive.request + 1, 1, 1))
    pull = training.whole("pull")
    assert sent(training.ask(pull), m.Pull)[0].version == 1, "it is asked for, and not begun"
    assert training.machine.transfers.pace.gate is Gate.ARRIVED
    training.get(m.Waiting(arrive.request, "worker 1"))
    assert training.machine.transfers.pace.awaited == "worker 1"
    training.get(m.Proceed(arrive.request, 1, 1))
    assert training.machine.transfers.pace.gate is Gate.OPEN


def test_nothing_is_held_in_the_asynchronous_mode() -> None:
    training = Training(mode="async")
    actions = training.ask(training.whole("push"))
    assert len(sent(training.ask(training.whole("pull")), m.Pull)) == 4
    assert sent(training.answer(actions), m.Arrive) == []


def test_the_next_push_is_held_too_and_belongs_to_the_next_step() -> None:
    training = Training()
    first = training.ask(training.whole("push"))
    assert training.ask(training.whole("push")) == []
    pushes = training.proceed(training.answer(first))
    assert {(got.step, got.attempt) for got in sent(pushes, m.Push)} == {(1, 2)}
    assert training.ask(training.whole("pull")) == [], "that push closed the gate again"


def test_what_is_held_can_be_withdrawn_and_the_rest_goes_on() -> None:
    training = Training()
    pushed = training.brought()
    held, behind, finish = training.whole("push_pull"), training.whole("pull"), Advance(0.0)
    for operation in (held, behind, finish):
        assert training.ask(operation) == []
    pulls: list[Action] = []
    for operation in (held, finish):
        actions = training.handle(Cancelled(operation))
        assert outcome(actions, operation) == Cancelled(operation)
        pulls += actions
    assert len(sent(pulls, m.Pull)) == 4, "it is the first that waits now"
    assert sent(training.proceed(pushed), m.Push) == []
    assert (behind, None) in resolved(training.read(pulls, {S0: 1, S1: 1}))


def test_the_halves_of_a_push_pull_are_withdrawn_as_far_as_they_can_be() -> None:
    training = Training()
    both = training.whole("push_pull")
    pushes = training.ask(both)
    assert training.handle(Cancelled(both)) == [], "the push is under way"
    pulls = training.answer(pushes)
    training.proceed(pulls)
    assert len(sent(pulls, m.Pull)) == 4
    assert outcome(training.handle(Cancelled(both)), both) == Cancelled(both)
    training.read(pulls, {S0: 1, S1: 1})
    assert values_of(both) == [0.0] * 4
    assert training.ask(training.whole("push")), "the next step"


def test_a_push_of_some_parameters_closes_nothing_until_the_step_is_advanced() -> None:
    training = Training()
    first = training.ask(training.partial("push", 0, 1))
    second = training.ask(training.partial("push", 2, 3))
    assert len(sent(training.ask(training.whole("pull")), m.Pull)) == 4
    advance = Advance(0.0)
    assert training.ask(advance) == []
    assert sent(training.answer(first), m.Arrive) == []
    acked = training.answer(second)
    assert outcome(acked, advance) is None
    (arrive,) = sent(acked, m.Arrive)
    assert sorted(arrive.attempts) == [1, 2]


def test_an_advance_waits_for_no_pull() -> None:
    training = Training()
    training.answer(training.ask(training.partial("push", 0)))
    training.ask(training.whole("pull"))
    assert len(sent(training.ask(Advance(0.0)), m.Arrive)) == 1


def test_an_advance_goes_on_without_a_push_that_was_refused() -> None:
    training = Training()
    good, bad = training.ask(training.partial("push", 0)), training.ask(training.partial("push", 3))
    advance = Advance(0.0)
    training.ask(advance)
    training.answer(good)
    (refused,) = sent(bad, m.Push)
    peer = S1 if sent(bad, m.Push, S1) else S0
    actions = training.get(error(JobError, refused.request), peer)
    assert outcome(actions, advance) is None
    assert [list(got.attempts) for got in sent(actions, m.Arrive)] == [[1]]


@for_each("skips", [False, True])
@for_each("mode", ["sync", "bounded"])
def test_an_advance_with_nothing_pushed_skips_the_step(mode: str, skips: bool) -> None:
    training = Training(**MODES[mode])
    advance = Advance(0.0, skips=skips)
    actions = training.ask(advance)
    assert outcome(actions, advance) is None
    [arrive] = sent(actions, m.Arrive)
    assert (arrive.step, list(arrive.attempts)) == (0, [])
    assert training.ask(training.whole("push")) == [], "the step has to be over first"
    assert {got.step for got in sent(training.proceed(actions), m.Push)} == {1}


def test_there_are_no_steps_to_end_in_the_asynchronous_mode() -> None:
    training = Training(mode="async")
    advance = Advance(0.0)
    actions = training.ask(advance)
    assert outcome(actions, advance) is None
    assert sent(actions, m.Arrive) == []
    assert training.machine.statistics().clock == 0


def test_what_was_pushed_in_a_step_that_is_skipped_does_not_count() -> None:
    training = Training()
    pushed = training.ask(training.partial("push", 0, 1))
    skip = Advance(0.0, skips=True)
    assert training.ask(skip) == []
    acked = training.answer(pushed)
    assert outcome(acked, skip) is None
    assert [list(got.attempts) for got in sent(acked, m.Arrive)] == [[]]


def test_a_push_of_nothing_that_ends_the_step_skips_it() -> None:
    training = Training()
    push = training.partial("push")
    assert push.push is not None
    push.push.whole = True
    actions = training.ask(push)
    assert outcome(actions, push) is None
    assert [list(got.attempts) for got in sent(actions, m.Arrive)] == [[]]


@for_each("ended", [False, True])
def test_who_reads_in_a_step_that_nothing_ends_is_warned_once(ended: bool) -> None:
    training = Training()
    for parameter in (0, 1):
        push = training.partial("push", parameter)
        assert push.push is not None
        push.push.lacking, push.push.expected = {0, 1, 2, 3} - {parameter}, 4
        training.answer(training.ask(push))
    arrived = training.ask(Advance(0.0)) if ended else []
    said = logged(training.ask(training.whole("pull")) + (training.proceed(arrived) if ended else []))
    warning = "2 of 4 parameters pushed in this step, not 'c', 'd'; push(step=True) or advance() ends it"
    assert warning in said if not ended else said == ""
    assert logged(training.ask(training.whole("pull"))) == ""


def test_the_worker_is_told_that_its_gradients_came_too_late() -> None:
    training = Training()
    actions = training.proceed(training.brought(), version=4, counted=0)
    assert "step 0 was over before our gradients were complete" in logged(actions)
    assert (training.machine.statistics().dropped, training.machine.statistics().clock) == (1, 4)


def test_an_arrival_is_sent_again_until_it_is_answered() -> None:
    training = Training()
    arrive = training.arrived()
    again = sent(training.wait(training.now + 30.0, hear=True), m.Arrive)
    assert len(again) >= 3
    assert set(again) == {arrive}
    training.get(m.Proceed(arrive.request, 1, 1))
    assert sent(training.wait(training.now + 10.0, hear=True), m.Arrive) == []


def test_bounded_staleness_closes_the_gate_and_demands_no_version() -> None:
    training = Training(**MODES["bounded"])
    training.step(0)
    pulls = training.ask(training.whole("pull"))
    assert {got.version for got in sent(pulls, m.Pull)} == {0}
    assert training.machine.statistics().clock == 1


# --- push_pull ----------------------------------------------------------------------------------


@for_each("mode", ["sync", "bounded"])
def test_a_push_pull_is_a_push_an_arrival_and_a_pull(mode: str) -> None:
    training = Training(**MODES[mode])
    both = training.whole("push_pull")
    pushes = training.ask(both)
    assert {got.reply for got in sent(pushes, m.Push)} == {0}
    acked = training.answer(pushes)
    assert resolved(acked) == []
    with_arrival = mode == "sync"  # there the version is known that the step ends with
    assert len(sent(acked, m.Pull)) == 4 * with_arrival
    proceeded = training.proceed(acked)
    assert len(sent(proceeded, m.Pull)) == 4 * (not with_arrival)
    assert outcome(training.read([*acked, *proceeded], {S0: 1, S1: 1}), both) is None
    assert values_of(both) == [1.0] * 4
    statistics = training.machine.statistics()
    assert (statistics.pushes, statistics.pulls) == (1, 1)


def test_a_push_pull_in_the_asynchronous_mode_is_one_round_trip() -> None:
    training = Training(mode="async")
    assert {got.reply for got in sent(training.ask(training.whole("push_pull")), m.Push)} == {1}


def test_a_push_pull_of_some_parameters_waits_for_nobody() -> None:
    training = Training()
    pulls = training.answer(training.ask(training.partial("push_pull", 0, 1, 2)))
    assert sent(pulls, m.Arrive) == []
    assert len(sent(pulls, m.Pull)) == 3


def test_a_push_pull_that_times_out_is_called_so_in_each_of_its_phases() -> None:
    training = Training()
    training.ask(training.whole("push_pull"), timeout=2.0)
    error = failed(training.wait(training.now + 2.0, hear=True), DeadlineError)
    assert error.operation == "push_pull"
    assert "server 0" in error.waiting_for
    training.proceed(training.answer(training.ask(training.whole("push_pull"), timeout=2.0)))
    assert failed(training.wait(training.now + 2.0, hear=True), DeadlineError).operation == "push_pull"


def test_a_push_pull_that_times_out_while_it_is_held_says_whom_the_step_waits_for() -> None:
    training = Training()
    arrive = training.arrived("push_pull", timeout=2.0)
    training.get(m.Waiting(arrive.request, "worker 5 (w5, h, pid 2): step 0 has 3 of 4"))
    error = failed(training.wait(training.now + 2.0, hear=True), DeadlineError)
    assert error.waiting_for == "worker 5 (w5, h, pid 2): step 0 has 3 of 4"
    assert len(sent(training.get(m.Proceed(arrive.request, 1, 1)), m.Pull)) == 0


# --- versions -----------------------------------------------------------------------------------


def test_slices_that_are_older_than_the_rest_are_read_again_as_often_as_it_takes() -> None:
    training = Training()
    training.step(1)
    pull = training.whole("pull")
    actions = training.read(training.ask(pull), {S0: 1, S1: 2})
    assert resolved(actions) == []
    assert {(got.version, len(got.parts)) for got in sent(actions, m.Pull)} == {(2, 1)}
    assert sent(actions, m.Pull, S1) == []
    actions = training.read(actions, {S0: 3})
    assert {got.version for got in sent(actions, m.Pull, S1)} == {3}
    assert outcome(training.read(actions, {S1: 3}), pull) is None
    assert pull.pull is not None
    assert set(pull.pull.target.versions.values()) == {3}
    assert values_of(pull) == [3.0] * 4
    assert training.machine.statistics().pulls == 1


def test_what_is_read_again_replaces_values_that_were_looked_at_in_the_servers_memory() -> None:
    training = Training()
    pull = training.whole("pull")
    assert pull.pull is not None
    arrays = pull.pull.target.arrays
    target = pull.pull.target = ViewTarget(arrays=arrays, views=Views([a for a in arrays if a is not None]))
    actions = training.ask(pull)
    for request in sent(actions, m.Pull, S0):
        memory = np.full(8, 1, np.float32).view(np.uint8)
        memory.flags.writeable = False
        training.get(m.Values(request.request, "raw", [1], [], [borrow(memory, 0, 32, object())]), S0)
    again = training.read(actions, {S1: 2})
    assert outcome(training.read(again, {S0: 2}), pull) is None  # this time copied: the server had no memory to lend
    assert [array.tolist() for array in target.views.arrays()] == [[2.0] * 8] * 4


def test_in_the_asynchronous_mode_slices_may_have_different_versions() -> None:
    training = Training(mode="async")
    pull = training.whole("pull")
    assert outcome(training.read(training.ask(pull), {S0: 1, S1: 2}), pull) is None


def test_exactly_one_version_is_asked_for_and_its_refusal_reported() -> None:
    training = Training(retain=1)
    pull = training.whole("pull", version=3, exact=True)
    pulls = sent(training.ask(pull), m.Pull)
    assert {(got.version, got.exact) for got in pulls} == {(3, 1)}
    refused = training.get(error(VersionError, pulls[0].request, version=3, oldest=4, newest=5), S0)
    failure(refused, pull, VersionError)


# --- failures -----------------------------------------------------------------------------------


def test_a_push_that_failed_may_be_repeated_and_counts_once() -> None:
    training = Training()
    push = training.whole("push")
    actions = training.ask(push)
    training.answer(actions, S0)
    lost = training.wait(training.now + 5.0, hear=True)
    failure(lost, push, DeadlineError)
    assert sent(lost, m.Arrive) == []
    again = training.ask(training.whole("push"))
    assert {(got.step, got.attempt) for got in sent(again, m.Push)} == {(0, 2)}
    assert sent(training.answer(actions, S1), m.Arrive) == [], "the answers to the first one are too late"
    acked = training.answer(again)
    assert [list(got.attempts) for got in sent(acked, m.Arrive)] == [[2]]


def test_what_was_held_behind_a_push_that_failed_goes_on() -> None:
    training = Training()
    push, pull = training.whole("push"), training.whole("pull")
    actions = training.ask(push)
    training.ask(pull)
    refused = sent(actions, m.Push, S0)[0]
    released = training.get(error(NonFiniteGradientError, refused.request, worker="w", parameters="'a'"), S0)
    failure(released, push, NonFiniteGradientError)
    assert {got.version for got in sent(released, m.Pull)} == {0}


def test_a_whole_push_waits_for_an_earlier_one_whose_answer_was_lost() -> None:
    training = Training()
    partial = training.ask(training.partial("push", 0))
    whole = training.ask(training.whole("push"))
    assert sent(training.answer(whole), m.Arrive) == []
    (arrive,) = sent(training.answer(partial), m.Arrive)
    assert sorted(arrive.attempts) == [1, 2]


def test_a_straggler_fails_what_waits_and_the_next_transfer_waits_again() -> None:
    training = Training(on_straggler="fail")
    pull = training.whole("pull")
    acked = training.brought()
    training.ask(pull)
    (arrive,) = sent(acked, m.Arrive)
    failed = training.fail(arrive)
    failure(failed, pull, DeadlineError)
    next_one = training.whole("pull")
    again = training.ask(next_one)
    (waits,) = sent(again, m.Arrive)
    assert (waits.step, list(waits.attempts)) == (0, [])
    assert {got.version for got in sent(again, m.Pull)} == {1}
    assert resolved(training.read(again, {S0: 1, S1: 1})) == []
    assert outcome(training.proceed(again), next_one) is None


def test_a_gradient_that_does_not_fit_its_parameters_dtype_is_refused_as_infinite() -> None:
    training = Training()
    push = training.whole("push")
    assert push.push is not None
    push.push.source.arrays = [np.full(8, 1e300) for _ in training.spec.parameters]
    actions = training.ask(push)
    assert sent(actions, m.Push) == []
    refused = failure(actions, push, NonFiniteGradientError)
    assert refused.parameters == "'a', 'b', 'c', 'd'"
    assert training.machine.statistics().nonfinite == 1
    assert len(sent(training.ask(training.whole("push")), m.Push)) == 4, "the gate is open"


@for_each("held", [False, True])
def test_nobody_waits_for_a_step_that_a_lost_coordinator_would_have_to_close(held: bool) -> None:
    training = Training()
    training.brought()
    pull = training.whole("pull")
    if held:
        training.ask(pull, timeout=60.0)
    actions = training.wait(training.now + 12.0)
    failure(actions if held else training.ask(pull, timeout=60.0), pull, PeerLostError)


def test_a_push_pull_fails_when_the_coordinator_is_lost_while_it_pushes() -> None:
    training = Training()
    both = training.whole("push_pull")
    pushes = training.ask(both, timeout=60.0)
    assert len(sent(training.wait(training.now + 12.0), m.Heartbeat)) >= 10
    failure(training.answer(pushes), both, PeerLostError)


def test_finish_waits_for_what_is_held() -> None:
    training = Training()
    pushes = training.ask(training.whole("push"))
    pull, finish = training.whole("pull"), Finish(0.0)
    training.ask(pull)
    assert training.ask(finish) == []
    pulls = training.answer(pushes)
    training.proceed(pulls)
    done = training.read(pulls, {S0: 1, S1: 1})
    assert outcome(done, pull) is None
    assert m.Ack not in {type(getattr(action, "message", None)) for action in done}
    assert training.machine.operations == {finish: None}


def each(training: Training) -> Exchange:
    """Return a pull that wants to know of each parameter."""
    transfer = training.whole("pull")
    assert transfer.pull is not None
    transfer.pull.target.missing = {number: parameter.size for number, parameter in enumerate(training.spec.parameters)}
    return transfer


def test_parameters_are_told_of_as_they_land_and_before_the_end() -> None:
    training = Training(mode="async")
    actions = training.ask(each(training))
    told = [training.read([action], {peer: 1}) for peer in (S1, S0) for action in actions]
    flat = [action for some in told for action in some if isinstance(action, Landed | Resolve)]
    assert [type(action) for action in flat] == [Landed] * 4 + [Resolve]
    assert sorted(number for action in flat[:4] for number in action.parameters) == [0, 1, 2, 3]


@for_each("mode, exact", [("sync", 1), ("async", 0), ("bounded", 0)])
def test_a_synchronous_pull_that_tells_of_each_asks_for_one_version(mode: str, exact: int) -> None:
    training = Training(**MODES[mode])
    pulls = sent(training.ask(each(training)), m.Pull)
    assert {pull.exact for pull in pulls} == {exact}


# --- much at once -------------------------------------------------------------------------------

MANY = 1500  # more than calls may lie inside one another


def test_many_that_are_held_and_end_as_soon_as_they_begin_are_all_resolved() -> None:
    training = Training()
    acked = training.brought()
    advances = [Advance(0.0) for _ in range(MANY)]
    for advance in advances:
        assert training.machine.handle(advance, training.now) == []
    done, arrived = [], training.proceed(acked)
    for version in range(2, MANY + 2):
        done += resolved(arrived)
        arrived = training.proceed(arrived, version)
    assert done == [(advance, None) for advance in advances]


def test_many_that_are_held_and_refused_as_soon_as_they_begin_are_all_told() -> None:
    training = Training()
    acked = training.brought()
    pushes = [training.whole("push", np.nan) for _ in range(MANY)]
    for push in pushes:
        assert training.machine.handle(push, training.now) == []
    told = resolved(training.proceed(acked))
    assert [push for push, _ in told] == pushes
    assert {type(value) for _, value in told} == {NonFiniteGradientError}


def test_many_that_are_held_when_the_step_fails_are_all_told() -> None:
    training = Training(on_straggler="fail")
    arrive = training.arrived()
    held = [training.whole("pull"), *(Advance(0.0) for _ in range(MANY))]
    for operation in held:
        assert resolved(training.machine.handle(operation, training.now)) == []
    told = resolved(training.fail(arrive))
    assert [operation for operation, _ in told] == held
    assert {type(value) for _, value in told} == {DeadlineError}


SHORT = {"server": "s", "what": "a push", "why": "no more"}


@for_each("mode", ["async", "sync"])
def test_what_a_server_lacked_the_memory_for_is_sent_again_a_little_later(mode: str) -> None:
    training = Training(**MODES[mode])
    push = training.partial("push", 0)
    (first,) = sent(training.ask(push), m.Push)
    told = training.get(error(ServerMemoryError, first.request, **SHORT), S0)
    assert [action for action in told if not isinstance(action, Log)] == []
    (line,) = [action.text for action in told if isinstance(action, Log)]
    assert "lacks the memory for a push (no more); asking again for 10 s" in line
    (second,) = sent(training.wait(training.now + 0.2), m.Push)
    assert (second.request, second.seq, second.attempt) == (first.request, first.seq, first.attempt)
    assert outcome(training.get(m.Ack(second.request, [1], [0]), S0), push) is None
    assert sent(training.wait(training.now + 5.0, hear=True), m.Push) == []


def test_what_a_server_lacks_the_memory_for_for_long_is_raised_and_may_be_asked_for_again() -> None:
    training = Training(mode="async")
    kinds: list[tuple[str, Any]] = [("push", m.Push), ("pull", m.Pull)]
    for kind, message in kinds:
        operation = training.transfer(kind, parameters=frozenset([0]))
        (asked,) = sent(training.ask(operation, timeout=60.0), message)
        begun, times, lines = training.now, 0, 0
        while not resolved(told := training.get(error(ServerMemoryError, asked.request, **SHORT), S0)):
            lines += sum(isinstance(action, Log) for action in told)
            (again,) = sent(training.wait(training.now + 1.1, hear=True), message)
            assert again.request == asked.request
            times += 1
        failure(told, operation, ServerMemoryError)
        assert 10.0 <= training.now - begun < 12.0
        assert times < 20
        assert sent(training.wait(training.now + 5.0, hear=True), message) == []


def test_that_a_server_lacked_the_memory_may_be_heard_after_the_end_of_the_connection() -> None:
    training = Training(mode="async")
    push = training.partial("push", 0)
    (first,) = sent(training.ask(push, timeout=60.0), m.Push)
    training.handle(Disconnected(S0))
    assert resolved(training.get(error(ServerMemoryError, first.request, **SHORT), S0)) == []
    training.handle(Connected(S0))
    (again,) = sent(training.get(WELCOME, S0), m.Push)
    assert again.seq == first.seq


def test_a_deadline_says_that_a_server_lacks_the_memory() -> None:
    training = Training(mode="async")
    push = training.partial("push", 0)
    (first,) = sent(training.ask(push, timeout=0.05), m.Push)
    training.get(error(ServerMemoryError, first.request, **SHORT), S0)
    late = failure(training.wait(training.now + 0.06), push, DeadlineError)
    assert "to have the memory for it" in str(late)
    assert sent(training.wait(training.now + 5.0, hear=True), m.Push) == [], "it was given up"
    assert training.machine.links.by_shard[0].in_flight == {}


def test_a_pull_waits_for_a_push_before_it_that_was_put_off() -> None:
    training = Training(mode="async")
    push = training.partial("push", 0)
    (pushed,) = sent(training.ask(push), m.Push)
    pull = training.transfer("pull", parameters=frozenset([0]))
    (asked,) = sent(training.ask(pull), m.Pull)
    training.get(error(ServerMemoryError, pushed.request, **SHORT), S0)
    early = training.get(m.Values(asked.request, "raw", [0], [], [np.zeros(4, np.float32)]), S0)
    assert resolved(early) == [], "it has not seen the push"
    told = training.wait(training.now + 0.25)
    assert len(sent(told, m.Push)) == len(sent(told, m.Pull)) == 1
    assert outcome(training.get(m.Ack(pushed.request, [1], [0]), S0), push) is None
    values = training.get(m.Values(asked.request, "raw", [1], [], [np.ones(4, np.float32)]), S0)
    assert [operation for operation, _ in resolved(values)] == [pull]


def test_a_push_that_is_not_answered_for_want_of_memory_is_sent_again_by_the_same_number() -> None:
    training = Training(mode="async")
    push_pull = training.transfer("push_pull", parameters=frozenset([0]))
    (first,) = sent(training.ask(push_pull, timeout=60.0), m.Push)
    again: list[m.Push] = []
    for question in sent(training.wait(training.now + 20.0, hear=True), m.Pull, S0)[:2]:
        again += sent(training.get(m.Values(question.request, "raw", (), (), ()), S0), m.Push)
    assert [message.seq for message in again] == [first.seq]
