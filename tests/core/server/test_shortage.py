"""What is answered when memory is short: what it was for, and what the allocator has said, cut to size."""

from __future__ import annotations

from tests.core.machines import assign, job, placement
from tests.tables import for_each
from zmqps.core.protocol.messages import Commit, Leave, Load, Message, Pull, Push
from zmqps.core.server.shortage import MAX_WHY_CHARS, as_error
from zmqps.errors import ServerMemoryError

SPEC = job()


@for_each(
    "message, what",
    [
        (Push(1, 1, 1, 0, 0, 1, 0, 0, "raw", "raw", (), (), ()), "a push"),
        (Pull(1, 1, 0, 0, "raw", ()), "a pull"),
        (Load(1, 1, (), ()), "initial values"),
        (assign(SPEC, placement(SPEC)), "a shard"),
        (Commit(1, 7, ()), "step 7"),
        (Leave("closed"), "Leave"),
    ],
)
def test_it_says_who_lacked_memory_and_for_what(message: Message, what: str) -> None:
    cause = MemoryError("cannot allocate 8 bytes")
    error = as_error("server-0", message, cause)
    assert isinstance(error, ServerMemoryError)
    assert error.facts() == {"server": "server-0", "what": what, "why": "cannot allocate 8 bytes"}
    assert error.__cause__ is cause


@for_each("said, why", [("", "the system gave none"), ("x" * 1000, "x" * MAX_WHY_CHARS)])
def test_what_the_allocator_has_said_is_short_and_never_empty(said: str, why: str) -> None:
    assert as_error("server-0", Commit(1, 0, ()), MemoryError(said)).why == why
