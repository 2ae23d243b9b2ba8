"""What other hosts say is taken for what it should be, or refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doctor.hosts import well
from tests.tables import for_each
from zmqps.doctor.facts import HostFacts, Reach, read
from zmqps.errors import ProtocolError


def test_facts_come_over_a_pipe_as_they_were() -> None:
    facts = well(1, gpus=["cuda:0"], names={"a": ["10.0.0.1"]})
    assert read(HostFacts, json.loads(json.dumps(asdict(facts)))) == facts


def test_what_a_host_calls_itself_is_shown_as_text() -> None:
    facts = read(HostFacts, asdict(replace(well(1), hostname="a\x1b[2J" + "x" * 1000)))
    assert facts.hostname.startswith("a\\x1b[2J")
    assert len(facts.hostname) < 600


@for_each(
    "changes",
    [{"cores": "8"}, {"cores": True}, {"gpus": [1]}, {"names": {"a": "b"}}, {"more": 1}, {"interfaces": [1]}],
)
def test_anything_else_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="a host says"):
        read(HostFacts, {**asdict(well(1)), **changes})


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read(Reach, {"source": "a"})


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@given(PLAIN, st.sampled_from([HostFacts, list[Reach], dict[str, Any], int, float]))
def test_any_json_is_read_or_refused_by_the_documented_error(plain: Any, kind: Any) -> None:
    try:
        read(kind, plain)
    except ProtocolError:
        pass
