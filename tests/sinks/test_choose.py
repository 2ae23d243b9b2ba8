"""What ``--values`` may say, and what it makes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.sinks.choose import check_texts, open_sinks
from zmqps.sinks.jsonl import JsonLines


class Own:
    """A sink of a user's own."""

    def values(self, *call: Any) -> None:
        """Take it."""

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("my_sinks")
    monkeypatch.setitem(sys.modules, "my_sinks", module)
    return module


def test_sinks_are_known_by_what_they_were_called_with(tmp_path: Path, module: Any) -> None:
    module.make = Own
    text = f"jsonl:{tmp_path / 'log.jsonl'}"
    sinks = open_sinks([text, "my_sinks:make", text])
    assert [type(sink) for sink in sinks.values()] == [JsonLines, Own]
    assert list(sinks) == [text, "my_sinks:make"]
    for sink in sinks.values():
        sink.close()


@for_each("text", ["", "jsonl", "jsonl:", ":x", "tensorboard"])
def test_what_names_nothing_is_refused_before_anything_is_opened(text: str) -> None:
    with pytest.raises(ConfigurationError, match="names nothing: write jsonl:FILE"):
        check_texts([text])


@for_each("text", ["no_such_module_at_all:make", "my_sinks:nothing", ".relative:make", "os:path"])
def test_what_is_not_to_be_found_is_named(text: str, module: ModuleType) -> None:
    with pytest.raises(ConfigurationError, match=f"--values {text}"):
        open_sinks([text])


def test_a_sink_that_lacks_methods_is_refused(module: Any) -> None:
    module.make = object
    with pytest.raises(ConfigurationError, match=r"which lacks values, flush, close\(\)"):
        open_sinks(["my_sinks:make"])


def test_a_factory_that_fails_is_named_with_what_it_says(module: Any) -> None:
    def make() -> None:
        raise OSError("no route")

    module.make = make
    with pytest.raises(ConfigurationError, match="my_sinks:make cannot be used: OSError: no route"):
        open_sinks(["my_sinks:make"])


def test_where_one_cannot_be_opened_the_others_are_closed(tmp_path: Path, module: Any) -> None:
    closed: list[bool] = []

    class Closing(Own):
        def close(self) -> None:
            closed.append(True)

    module.make = Closing
    with pytest.raises(ConfigurationError):
        open_sinks(["my_sinks:make", f"jsonl:{tmp_path}"])
    assert closed == [True]
