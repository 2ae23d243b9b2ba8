"""Who may say hello, and for which job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.machines import hello
from tests.tables import for_each
from zmqps.core.protocol.messages.hello import (
    MAX_CAPABILITIES,
    MAX_CAPABILITY_CHARS,
    MAX_ENDPOINT_CHARS,
    MAX_JOB_NAME_CHARS,
    MAX_NAME_CHARS,
    check_hello,
    check_job,
)
from zmqps.errors import LimitError, ProtocolError, ProtocolVersionError


@for_each("name", ["a", "two words", "größer", "x" * MAX_JOB_NAME_CHARS])
def test_a_job_may_have_any_printable_name(name: str) -> None:
    check_job(hello("worker", job=name))


@for_each("name", ["", "a\nb", "\x1b[2J", "x" * (MAX_JOB_NAME_CHARS + 1)])
def test_a_name_that_is_none_or_would_spoil_a_table_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError, match="printable characters"):
        check_job(hello("worker", job=name))


def test_a_hello_of_our_protocol_is_taken_in_each_role_that_is_expected_and_no_other() -> None:
    said = hello("worker")
    check_hello(said, ("worker", "observer"))
    with pytest.raises(ProtocolError, match="role 'worker'"):
        check_hello(said, ("server",))
    with pytest.raises(ProtocolError, match="magic 'HTTP'"):
        check_hello(replace(said, magic="HTTP"), ("worker",))
    with pytest.raises(ProtocolVersionError):
        check_hello(replace(said, version=said.version + 1), ("worker",))


@for_each("field", ["name", "host", "endpoint"])
def test_what_a_node_says_of_itself_is_printable_and_short(field: str) -> None:
    limit = MAX_ENDPOINT_CHARS if field == "endpoint" else MAX_NAME_CHARS
    check_hello(replace(hello("worker"), **{field: "größer [bold] " + "x" * (limit - 14)}), ("worker",))
    for text in ("a\nb", "a\rb", "\x1b[2J", "\x9b2J", "\u202egnp.exe", "\u2028", "\x00", "\ud800"):
        with pytest.raises(ProtocolError, match="printable characters"):
            check_hello(replace(hello("worker"), **{field: text}), ("worker",))
    with pytest.raises(LimitError):
        check_hello(replace(hello("worker"), **{field: "x" * (limit + 1)}), ("worker",))


def test_capabilities_are_few_and_short() -> None:
    most = ("x" * MAX_CAPABILITY_CHARS,) * MAX_CAPABILITIES
    check_hello(replace(hello("worker"), capabilities=most), ("worker",))
    for more in ((*most, ""), (most[0] + "x",)):
        with pytest.raises(LimitError):
            check_hello(replace(hello("worker"), capabilities=more), ("worker",))
