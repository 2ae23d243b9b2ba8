"""A pull that leaves with the arrival: when it counts, and when it is taken back."""

from __future__ import annotations

from typing import Any

from tests.core.machines import resolved, sent
from tests.core.worker.layout.test_rollbacks import S2, S3, synchronous
from tests.core.worker.test_session import S0, S1, error, values_of
from tests.core.worker.test_transfers import Training, each, failure, outcome
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.core.worker.operations import Advance, Cancelled, Exchange
from zmqps.errors import DeadlineError, LimitError, PeerLostError


def waiting(training: Training) -> tuple[Exchange, list[Action]]:
    """Bring a whole step, and ask for the values after it; return that pull, and what left once all was there."""
    acked = training.brought()
    pull = training.whole("pull")
    return pull, [*acked, *training.ask(pull)]


@for_each("first", [{S0: 1, S1: 1}, {S0: 1}])
def test_it_ends_with_the_answer_to_the_arrival_and_all_values(first: dict[bytes, int]) -> None:
    training = Training()
    pull, asked = waiting(training)
    assert {(got.version, got.exact) for got in sent(asked, m.Pull)} == {(1, 0)}
    assert resolved(training.read(asked, first)) == []
    assert training.machine.statistics().pulls == 0
    proceeded = training.proceed(asked)
    if S1 not in first:
        assert resolved(proceeded) == []
        proceeded = training.read(asked, {S1: 1})
    assert outcome(proceeded, pull) is None
    assert values_of(pull) == [1.0] * 4
    assert training.machine.statistics().pulls == 1


def test_it_is_not_sent_before_all_pushes_are_acknowledged() -> None:
    training = Training()
    pushes = training.ask(training.whole("push"))
    assert training.ask(training.whole("pull")) == []
    assert sent(training.answer(pushes, S0), m.Pull) == []
    assert len(sent(training.answer(pushes, S1), m.Pull)) == 4


def test_only_the_first_that_waits_is_asked_for() -> None:
    training = Training()
    _, asked = waiting(training)
    assert training.ask(training.whole("pull")) == []
    assert len(sent(training.proceed(asked), m.Pull)) == 4


def test_a_push_that_waits_before_it_leaves_first() -> None:
    training = Training()
    asked = training.brought()
    assert training.ask(training.whole("push_pull")) == []
    assert training.ask(training.whole("pull")) == []
    proceeded = training.proceed(asked)
    assert (len(sent(proceeded, m.Push)), sent(proceeded, m.Pull)) == (4, [])


@for_each("version, counted", [(0, 1), (3, 0)])
def test_who_goes_on_at_another_step_takes_it_back_and_asks_for_that(version: int, counted: int) -> None:
    """At the same one where more gradients are needed; at a later one where the others have gone on."""
    training = Training()
    pull, asked = waiting(training)
    if counted == 0:
        training.read(asked, {S0: 1, S1: 1})  # all there, of a step that is long over
    proceeded = training.proceed(asked, version, counted)
    assert resolved(proceeded) == []
    withdrawn = [message.request for message in sent(proceeded, m.Withdraw)]
    assert withdrawn == ([] if counted == 0 else [message.request for message in sent(asked, m.Pull)])
    assert {got.version for got in sent(proceeded, m.Pull)} == {version}
    assert outcome(training.read(proceeded, {S0: version, S1: version}), pull) is None
    assert values_of(pull) == [float(version)] * 4


def test_slices_of_different_versions_are_read_again_before_it_counts() -> None:
    training = Training()
    pull, asked = waiting(training)
    again = training.read(asked, {S0: 1, S1: 2})  # others have made a step without this worker
    assert {got.version for got in sent(again, m.Pull)} == {2}
    assert resolved(training.proceed(asked)) == []
    assert outcome(training.read(again, {S0: 2}), pull) is None
    assert values_of(pull) == [2.0] * 4


def test_it_is_withdrawn_with_its_operation() -> None:
    training = Training()
    pull, asked = waiting(training)
    actions = training.handle(Cancelled(pull))
    assert outcome(actions, pull) == Cancelled(pull)
    assert {got.request for got in sent(actions, m.Withdraw)} == {got.request for got in sent(asked, m.Pull)}
    training.read(asked, {S0: 1, S1: 1})
    assert values_of(pull) == [0.0] * 4
    assert sent(training.proceed(asked), m.Pull) == []


def test_its_error_at_the_deadline_says_whom_the_step_waits_for() -> None:
    training = Training()
    pull, asked = waiting(training)
    (arrive,) = sent(asked, m.Arrive)
    training.get(m.Waiting(arrive.request, "worker 5"))
    late = training.wait(training.now + 5.0, hear=True)
    assert outcome(late, pull).waiting_for == "worker 5"
    assert len(sent(late, m.Withdraw)) == 4


def test_a_wait_that_fails_takes_it_back() -> None:
    training = Training(on_straggler="fail")
    pull, asked = waiting(training)
    (arrive,) = sent(asked, m.Arrive)
    failed = training.fail(arrive)
    failure(failed, pull, DeadlineError)
    assert len(sent(failed, m.Withdraw)) == 4


def test_what_a_server_will_not_keep_is_asked_for_when_its_turn_has_come() -> None:
    training = Training()
    pull, asked = waiting(training)
    full = error(LimitError, sent(asked, m.Pull, S0)[0].request, what="bytes of all waiting pulls", got=2, limit=1)
    refused = training.get(full, S0)
    assert resolved(refused) == []
    assert len(sent(refused, m.Withdraw)) == 3
    assert training.get(m.Waiting(sent(asked, m.Arrive)[0].request, "")) == [], "not again in this step"
    proceeded = training.proceed(asked)
    assert {got.version for got in sent(proceeded, m.Pull)} == {1}
    assert outcome(training.read(proceeded, {S0: 1, S1: 1}), pull) is None


def test_it_fails_with_a_server_that_is_lost() -> None:
    training = Training()
    pull, _ = waiting(training)
    failure(training.get(m.Lost("server", 1, "s1", b"l" * 16, 3.0)), pull, PeerLostError)


@for_each("kind", ["each", "exact", "skips first"])
def test_what_is_told_of_one_by_one_or_is_no_read_of_the_next_version_is_not_asked_for(kind: str) -> None:
    training = Training(retain=1)
    training.brought()
    pull: Any = each(training) if kind == "each" else training.whole("pull")
    if kind == "exact":
        pull.pull.exact = True
    if kind == "skips first":
        training.ask(Advance(0.0, skips=True))
    assert sent(training.ask(pull), m.Pull) == []


def test_nothing_is_asked_for_where_shards_have_backups() -> None:
    training = Training()
    training.machine.moves.replicas = 1
    _, asked = waiting(training)
    assert sent(asked, m.Pull) == []
    assert len(sent(training.proceed(asked), m.Pull)) == 4


def test_none_is_sent_while_a_checkpoint_is_cut() -> None:
    training = Training()
    acked = training.brought()
    training.get(m.Hold(1))
    assert sent(training.ask(training.whole("pull")), m.Pull) == []
    assert len(sent(acked, m.Arrive)) == 1
    assert {got.version for got in sent(training.get(m.Hold(1, 1)), m.Pull)} == {1}


def test_a_job_that_goes_back_takes_it_back_and_reads_what_there_is() -> None:
    session = synchronous(9)
    pull = session.transfer("pull")
    asked = [*session.acknowledge(session.ask(session.transfer("push", whole=True))), *session.ask(pull)]
    assert {got.version for got in sent(asked, m.Pull)} == {10}
    session.read(asked, {S0: 10, S1: 10})
    back = session.go_back(0, 1)
    assert resolved(back) == []
    pulls = [*back, *session.welcome(S2), *session.welcome(S3)]
    assert {got.version for got in sent(pulls, m.Pull)} == {7}
    assert outcome(session.read(pulls, {S2: 7, S3: 7}), pull) is None
    assert values_of(pull) == [7.0] * 4
