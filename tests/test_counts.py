"""What is counted of the tree is counted as it says; and it may only become less."""

from __future__ import annotations

import ast

import pytest

from tests.counts import (
    attributes,
    counts,
    double_names,
    large_folders,
    long_functions,
    message_types,
    predicates,
    retry_constants,
)
from tests.imports import ROOT

pytestmark = pytest.mark.tree

#: More than this there may not be: write down here what there is now when it has become less.
AT_MOST = {
    "classes with over 12 attributes, in core": 5,
    "classes with over 12 attributes": 26,
    "functions with over 60 lines": 1,
    "folders with over 20 files": 0,
    "files of the largest folder": 20,
    "names of several classes of core": 0,
    "message types": 85,
    "retry constants": 29,
}

PARTS = """
RETRY_S = 1.0
_LOOK_S = _AGAIN_S = 5.0
PATIENCE_S = 3.0

class Copies(Part):
    limit: int
    kinds: ClassVar[int] = 3

    def __init__(self, host):
        self.host, self._named = host, {}
        self._named["a"] = 1
        host.other = 2

    def is_whole(self) -> bool:
        self.later = 1

    def _is_whole(self) -> bool: ...
    def names(self) -> list[str]: ...
"""


def test_nothing_that_is_counted_becomes_more() -> None:
    now = counts(ROOT)
    assert {name: now[name] for name in AT_MOST} == AT_MOST, "write down what has become less; nothing may become more"


def test_attributes_are_fields_and_what_a_constructor_assigns_to_itself() -> None:
    [node] = [node for node in ast.walk(ast.parse(PARTS)) if isinstance(node, ast.ClassDef)]
    assert attributes(node) == {"limit", "host", "_named"}


def test_predicates_and_retry_constants_are_those_of_the_core() -> None:
    tree = {"zmqps/core/coordinator/placement/copies.py": ast.parse(PARTS), "zmqps/net/copies.py": ast.parse(PARTS)}
    assert predicates(tree) == ["Copies.is_whole"]
    assert [name.rpartition(":")[2] for name in retry_constants(tree)] == ["RETRY_S", "_LOOK_S", "_AGAIN_S"]


def test_names_functions_folders_and_messages_are_counted() -> None:
    one = ast.parse("class Moved(Message):\n    kind: ClassVar[int] = 7\n\nclass Base:\n    kind: ClassVar[int]\n")
    long = ast.parse("def f():\n" + "    x = 1\n" * 60)
    tree = {"zmqps/core/protocol/messages/moving.py": one, "zmqps/core/worker/layout/moves.py": one, "zmqps/a.py": long}
    tree |= {f"zmqps/many/{number}.py": ast.parse("") for number in range(21)}
    assert double_names(tree) == {"Moved": 2, "Base": 2}
    assert message_types(tree) == ["Moved"]
    assert long_functions(tree) == {"zmqps/a.py:f": 61}
    assert large_folders(tree) == {"zmqps/many": 21}
