"""A pull that leaves with the arrival: when it counts, and when it is taken back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.machines import resolved, sent
from tests.core.worker.layout.test_rollbacks import S2, S3, synchronous
from tests.core.worker.test_session import S0, S1, error
from tests.core.worker.test_transfers import Training, each, outcome
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Arrive, Error, GoOn, Hold, Lost, Pull, Push, Waiting, Withdraw
from zmqps.core.worker.operations import Advance, Cancelled, Exchange
from zmqps.errors import DeadlineError, LimitError, PeerLostError


def waiting(training: Training) -> tuple[Exchange, list[Action]]:
    """Bring a whole step, and ask for the values after it; return that pull, and what left once all was there."""
    acked = training.ack(training.ask(training.whole("push")))
    pull = training.whole("pull")
    return pull, [*acked, *training.ask(pull)]


def values(pull: Exchange) -> list[float]:
    """Return what a pull has brought, an element a parameter."""
    assert pull.pull is not None
    return [float(array[0]) for array in pull.pull.target.arrays if array is not None]


def test_it_ends_with_the_answer_to_the_arrival_and_not_before() -> None:
    training = Training()
    pull, asked = waiting(training)
    assert {(m.version, m.exact) for m in sent(asked, Pull)} == {(1, 0)}
    assert resolved(training.read(asked, {S0: 1, S1: 1})) == []
    assert training.machine.statistics().pulls == 0
    assert outcome(training.proceed(asked), pull) is None
    assert values(pull) == [1.0] * 4
    assert training.machine.statistics().pulls == 1


def test_values_that_come_after_that_answer_end_it_as_well() -> None:
    training = Training()
    pull, asked = waiting(training)
    training.read(asked, {S0: 1})
    assert resolved(training.proceed(asked)) == []
    assert outcome(training.read(asked, {S1: 1}), pull) is None


def test_it_is_not_sent_before_all_pushes_are_acknowledged() -> None:
    training = Training()
    pushes = training.ask(training.whole("push"))
    assert training.ask(training.whole("pull")) == []
    assert sent(training.ack(pushes, S0), Pull) == []
    assert len(sent(training.ack(pushes, S1), Pull)) == 4


def test_only_the_first_that_waits_is_asked_for() -> None:
    training = Training()
    _, asked = waiting(training)
    assert training.ask(training.whole("pull")) == []
    assert len(sent(training.proceed(asked), Pull)) == 4


def test_a_push_that_waits_before_it_leaves_first() -> None:
    training = Training()
    asked = training.ack(training.ask(training.whole("push")))
    assert training.ask(training.whole("push_pull")) == []
    assert training.ask(training.whole("pull")) == []
    proceeded = training.proceed(asked)
    assert (len(sent(proceeded, Push)), sent(proceeded, Pull)) == (4, [])


@pytest.mark.parametrize(("version", "counted"), [(0, 1), (3, 0)])
def test_who_goes_on_at_another_step_takes_it_back_and_asks_for_that(version: int, counted: int) -> None:
    """At the same one where more gradients are needed; at a later one where the others have gone on."""
    training = Training()
    pull, asked = waiting(training)
    if counted == 0:
        training.read(asked, {S0: 1, S1: 1})  # all there, of a step that is long over
    proceeded = training.proceed(asked, version, counted)
    assert resolved(proceeded) == []
    withdrawn = [message.request for message in sent(proceeded, Withdraw)]
    assert withdrawn == ([] if counted == 0 else [message.request for message in sent(asked, Pull)])
    assert {m.version for m in sent(proceeded, Pull)} == {version}
    assert outcome(training.read(proceeded, {S0: version, S1: version}), pull) is None
    assert values(pull) == [float(version)] * 4


def test_slices_of_different_versions_are_read_again_before_it_counts() -> None:
    training = Training()
    pull, asked = waiting(training)
    again = training.read(asked, {S0: 1, S1: 2})  # others have made a step without this worker
    assert {m.version for m in sent(again, Pull)} == {2}
    assert resolved(training.proceed(asked)) == []
    assert outcome(training.read(again, {S0: 2}), pull) is None
    assert values(pull) == [2.0] * 4


def test_it_is_withdrawn_with_its_operation() -> None:
    training = Training()
    pull, asked = waiting(training)
    actions = training.handle(Cancelled(pull))
    assert outcome(actions, pull) == Cancelled(pull)
    assert {m.request for m in sent(actions, Withdraw)} == {m.request for m in sent(asked, Pull)}
    training.read(asked, {S0: 1, S1: 1})
    assert values(pull) == [0.0] * 4
    assert sent(training.proceed(asked), Pull) == []


def test_its_error_at_the_deadline_says_whom_the_step_waits_for() -> None:
    training = Training()
    pull, asked = waiting(training)
    (arrive,) = sent(asked, Arrive)
    training.get(Waiting(arrive.request, "worker 5"))
    late = training.wait(training.now + 5.0, hear=True)
    assert outcome(late, pull).waiting_for == "worker 5"
    assert len(sent(late, Withdraw)) == 4


def test_a_wait_that_fails_takes_it_back() -> None:
    training = Training(on_straggler="fail")
    pull, asked = waiting(training)
    (arrive,) = sent(asked, Arrive)
    late = DeadlineError(operation="step", seconds=2.0, waiting_for="worker 1")
    failed = training.get(Error(arrive.request, late.code, str(late), late.facts()))
    assert isinstance(outcome(failed, pull), DeadlineError)
    assert len(sent(failed, Withdraw)) == 4


def test_what_a_server_will_not_keep_is_asked_for_when_its_turn_has_come() -> None:
    training = Training()
    pull, asked = waiting(training)
    full = error(LimitError, sent(asked, Pull, S0)[0].request, what="bytes of all waiting pulls", got=2, limit=1)
    refused = training.get(full, S0)
    assert resolved(refused) == []
    assert len(sent(refused, Withdraw)) == 3
    assert training.get(Waiting(sent(asked, Arrive)[0].request, "")) == [], "not again in this step"
    proceeded = training.proceed(asked)
    assert {m.version for m in sent(proceeded, Pull)} == {1}
    assert outcome(training.read(proceeded, {S0: 1, S1: 1}), pull) is None


def test_it_fails_with_a_server_that_is_lost() -> None:
    training = Training()
    pull, _ = waiting(training)
    assert isinstance(outcome(training.get(Lost("server", 1, "s1", b"l" * 16, 3.0)), pull), PeerLostError)


@pytest.mark.parametrize("kind", ["each", "exact", "skips first"])
def test_what_is_told_of_one_by_one_or_is_no_read_of_the_next_version_is_not_asked_for(kind: str) -> None:
    training = Training(retain=1)
    training.ack(training.ask(training.whole("push")))
    pull: Any = each(training) if kind == "each" else training.whole("pull")
    if kind == "exact":
        pull.pull.exact = True
    if kind == "skips first":
        training.ask(Advance(0.0, skips=True))
    assert sent(training.ask(pull), Pull) == []


def test_nothing_is_asked_for_where_shards_have_backups() -> None:
    training = Training()
    training.machine.moves.replicas = 1
    _, asked = waiting(training)
    assert sent(asked, Pull) == []
    assert len(sent(training.proceed(asked), Pull)) == 4


def test_none_is_sent_while_a_checkpoint_is_cut() -> None:
    training = Training()
    acked = training.ack(training.ask(training.whole("push")))
    training.get(Hold(1))
    assert sent(training.ask(training.whole("pull")), Pull) == []
    assert len(sent(acked, Arrive)) == 1
    assert {m.version for m in sent(training.get(GoOn(1)), Pull)} == {1}


def test_a_job_that_goes_back_takes_it_back_and_reads_what_there_is() -> None:
    session = synchronous(9)
    pull = session.transfer("pull")
    asked = [*session.acknowledge(session.ask(session.transfer("push", whole=True)), S0, S1), *session.ask(pull)]
    assert {m.version for m in sent(asked, Pull)} == {10}
    session.values(asked, 10, S0, S1)
    back = session.go_back(0, 1)
    assert resolved(back) == []
    pulls = [*back, *session.welcome(S2), *session.welcome(S3)]
    assert {m.version for m in sent(pulls, Pull)} == {7}
    assert outcome(session.values(pulls, 7, S2, S3), pull) is None
    assert values(pull) == [7.0] * 4
