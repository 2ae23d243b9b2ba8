"""The mutator: it changes what a test could see, one thing at a time, and nothing else."""

from __future__ import annotations

import ast

import pytest

from tests.mutation import run
from tests.mutation.listed import Equivalent
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.run import files_for, modules, named, sample, shuffled
from tests.tables import for_each

BODY = "def f(a, b, x):\n    {}\n"


def changed(statement: str) -> set[str]:
    """Return what becomes of a statement."""
    source = BODY.format(statement)
    return {mutant.changed(source)[1] for mutant in mutants("m.py", source)}


@for_each(
    "statement, expected",
    [
        ("return a < b", {"return (a <= b)", "return None"}),
        ("return a + b", {"return (a - b)", "return None"}),
        ("return a and b", {"return (a or b)", "return a", "return b", "return None"}),
        ("return not a", {"return a", "return None"}),
        ("return max(a, b)", {"return min(a, b)", "return a", "return b", "return None"}),
        ("return a if x else b", {"return a", "return b", "return None"}),
        ("x.y = 1", {"pass", "x.y = 2", "x.y = 0"}),
        ("x |= a", {"pass", "x = a", "x &= a"}),
        ("x.clear()", {"pass"}),
        ("del x[a]", {"pass"}),
        ("raise ValueError", {"pass"}),
        ("for a in b: x()", {"for a in b: pass"}),
        ("while a: break", {"while a: continue"}),
        ("return True", {"return False", "return None"}),
    ],
)
def test_a_statement_is_changed_in_each_way_it_can_be(statement: str, expected: set[str]) -> None:
    assert changed(statement) == expected


@for_each(
    "statement",
    [
        "'''A docstring with 1 < 2.'''",
        "assert a < b",
        "return None",
        "x = a",
        "x: dict[1 + 1, 2] = a",
        "import os",
        "x = f'{a + 1}'",
        "x = [Log('warning', a + 1)]",
        "x = LimitError(what='a', got=a + 1)",
        "x = zip(a, b, strict=True)",
    ],
)
def test_what_no_test_should_see_is_left_alone(statement: str) -> None:
    assert changed(statement) == set()


def test_invariants_that_are_asserted_and_constants_of_a_module_are_left_alone() -> None:
    assert mutants("m.py", "LIMIT = 1 << 20\n\nclass A:\n    def validate(self):\n        self.look(1)\n") == []


def test_text_of_more_bytes_than_characters_is_changed_in_the_right_place() -> None:
    source = "def f(a):\n    'é∞'; a = 'ü' if a else 1; return a\n"
    assert "    'é∞'; a = 'ü'; return a" in {m.apply(source).splitlines()[1] for m in mutants("m.py", source)}


@pytest.mark.repeats
def test_every_mutant_of_the_core_is_a_module_that_says_something_else() -> None:
    sources = modules("zmqps/core")
    trees: dict[str, str] = {}
    for mutant in sample(sources, 60, seed=1):
        source = sources[mutant.path]
        original = trees.setdefault(mutant.path, ast.dump(ast.parse(source)))
        assert ast.dump(ast.parse(mutant.apply(source))) != original, mutant


def test_an_order_is_the_same_for_a_seed_and_each_beginning_has_every_modules_share() -> None:
    found = [
        Mutant(path=path, start=i, stop=i, new="", kind="") for path, n in (("a", 80), ("b", 20)) for i in range(n)
    ]
    order = shuffled(found, seed=0)
    assert order == shuffled(found, seed=0) != shuffled(found, seed=1)
    assert set(order) == set(found)
    assert [sum(m.path == path for m in order[:10]) for path in "ab"] == [8, 2]


def test_a_change_of_one_module_leaves_the_mutants_of_the_others() -> None:
    found = [Mutant(path=path, start=i, stop=i, new="", kind="") for path in "ab" for i in range(20)]
    of_b = [mutant for mutant in shuffled(found, seed=0) if mutant.path == "b"]
    assert [mutant for mutant in shuffled(found[7:], seed=0) if mutant.path == "b"] == of_b


def test_a_mutant_keeps_its_name_when_its_module_changes_elsewhere() -> None:
    source = "\n\ndef f(a, b):\n    a.x = 1\n    b.y = 2\n\n\ndef g(c):\n    c.clear()\n"
    names = {mutant.name(source) for mutant in mutants("m.py", source)}
    assert len(names) == len(mutants("m.py", source))
    longer = "import os\n" + source + "    c.close()\n"
    kept = [mutant.name(longer) for mutant in mutants("m.py", longer) if mutant.name(longer) in names]
    assert {mutant.name(longer) for mutant in named({"m.py": longer}, kept)} == set(kept)
    assert len(kept) == 6  # of f; of g the lines around have changed


def test_a_name_that_no_mutant_has_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"no mutant has this name, .*: 123456"):
        named({"m.py": "def f(a):\n    a.clear()\n"}, ["123456"])


def test_what_is_known_to_change_nothing_is_passed_over_and_changes_no_other_choice(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    sources = {"m.py": "def f(a, b):\n    a.x = 1\n    b.y = 2\n    return a\n"}
    monkeypatch.setattr(run, "EQUIVALENT", ())
    before = sample(sources, 5, seed=0)
    old, new = before[1].changed(sources["m.py"])
    monkeypatch.setattr(run, "EQUIVALENT", (Equivalent(path="m.py", old=old, new=new, reason=""),))
    after = sample(sources, 5, seed=0)
    assert after[:4] == [before[0], *before[2:]]
    assert len(after) == 5


def test_a_module_meets_its_own_tests_first() -> None:
    files = files_for("zmqps/core/worker/connections/link.py")
    assert files[0] == "tests/core/worker/connections/test_link.py"
    assert all(file.startswith("tests/core/worker/") for file in files)
    assert len(files) == len(set(files)) > 3
    assert "tests/core/coordinator/training/test_steps.py" in files_for(
        "zmqps/core/coordinator/consistency/asynchronous.py"
    )
