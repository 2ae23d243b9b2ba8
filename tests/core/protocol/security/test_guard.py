"""The job secret: who knows it joins and ends jobs; who has only heard what those sent does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.core.machines import identity
from tests.tables import for_each
from zmqps.core.protocol.messages import PROTOCOL_VERSION, EndJob, Examine, Hello, Welcome
from zmqps.core.protocol.security.guard import check_join, check_order, check_welcome, join_guard, proved, welcome_guard
from zmqps.errors import IdentityError

SECRET, OTHER, NONE = b"what all who join know", b"what somebody guesses", b""
HELLO = identity("worker", "w").hello()
NONCE = b"n" * 16


def joining(secret: bytes, hello: Hello = HELLO) -> Hello:
    return replace(hello, guard=join_guard(secret, hello))


def answering(proof: bytes) -> Welcome:
    return Welcome(PROTOCOL_VERSION, b"c" * 16, "coordinator", 0, 1.0, 10.0, 1, 1, proof=proof)


def test_who_knows_the_secret_joins_and_knows_the_coordinator() -> None:
    check_join(SECRET, joining(SECRET))
    check_welcome(SECRET, HELLO, answering(welcome_guard(SECRET, HELLO)))


def test_where_there_is_no_secret_anybody_joins_and_ends_jobs() -> None:
    for hello in (HELLO, joining(OTHER)):
        check_join(NONE, hello)
        check_welcome(NONE, hello, answering(b""))
    check_order(NONE, NONE, EndJob(1, "job"))
    assert (welcome_guard(NONE, HELLO), proved(NONE, EndJob(1, "job", NONCE)).guard) == (b"", b"")


@for_each("guard, shows", [(b"", "shows none"), (b"x" * 16, "shows that it knows another one")])
def test_who_does_not_know_it_is_told_what_to_do(guard: bytes, shows: str) -> None:
    with pytest.raises(IdentityError, match=f"worker w {shows}; give every process .* --job-secret FILE"):
        check_join(SECRET, replace(HELLO, guard=guard))
    with pytest.raises(IdentityError, match=f"to end jobs and the cluster, show it: .* {shows}; give every process"):
        check_order(SECRET, OTHER, EndJob(1, "job", NONCE, guard))


@for_each(
    "change",
    [
        {"role": "server"}, {"role": "observer"}, {"incarnation": b"i" * 16}, {"secret": b"s" * 16}, {"job": "another"},
        {"job": ""},
    ],
)  # fmt: skip
def test_what_was_overheard_lets_nobody_join_as_something_else(change: dict[str, object]) -> None:
    with pytest.raises(IdentityError):
        check_join(SECRET, replace(joining(SECRET), **change))  # type: ignore[arg-type]


@for_each(
    "proof",
    [
        lambda: b"",
        lambda: welcome_guard(OTHER, HELLO),
        lambda: join_guard(SECRET, HELLO),  # which the worker itself has sent
        lambda: welcome_guard(SECRET, replace(HELLO, incarnation=b"i" * 16)),
        lambda: welcome_guard(SECRET, replace(HELLO, secret=b"s" * 16)),
    ],
)
def test_a_coordinator_that_does_not_know_it_is_none(proof: Callable[[], bytes]) -> None:
    with pytest.raises(IdentityError, match="does not show that it knows the job secret"):
        check_welcome(SECRET, HELLO, answering(proof()))


def test_what_ends_one_job_ends_no_other_and_is_said_once() -> None:
    guard = proved(SECRET, EndJob(1, "job", NONCE)).guard
    check_order(SECRET, OTHER, EndJob(1, "job", NONCE, guard))
    for job, nonce in (("job2", NONCE), ("job", b"m" * 16), ("jo", b"b" + NONCE), ("", NONCE)):
        with pytest.raises(IdentityError):
            check_order(SECRET, OTHER, EndJob(1, job, nonce, guard))


def test_where_there_is_no_secret_who_has_read_the_end_key_ends_jobs() -> None:
    check_order(NONE, OTHER, proved(OTHER, EndJob(1, "job", NONCE)))
    for guard in (b"", proved(SECRET, EndJob(1, "job", NONCE)).guard):
        with pytest.raises(IdentityError, match="only the coordinator's own user"):
            check_order(NONE, OTHER, EndJob(1, "job", NONCE, guard))


def test_who_may_end_jobs_may_see_the_threads_of_the_node_that_was_named() -> None:
    guard = proved(OTHER, Examine(1, "worker-2", NONCE)).guard
    check_order(NONE, OTHER, Examine(1, "worker-2", NONCE, guard))
    for node, shown in (
        ("worker-1", guard),
        ("worker-2", b""),
        ("worker-2", proved(OTHER, EndJob(1, "worker-2", NONCE)).guard),
    ):
        with pytest.raises(IdentityError, match="only the coordinator's own user may see what the threads"):
            check_order(NONE, OTHER, Examine(1, node, NONCE, shown))


def test_no_text_can_be_cut_in_another_way() -> None:
    first = replace(HELLO, role="worker", job="ab")
    assert join_guard(SECRET, first) != join_guard(SECRET, replace(first, job="abb"))
    assert proved(SECRET, EndJob(1, "ab", b"c" * 16)).guard != proved(SECRET, EndJob(1, "abc", b"c" * 15)).guard
