"""The documents are true to the tree: links, make targets, the modules and files they name, the picture of rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import zmqps
from tests import figures, options, roles
from tests.imports import ROOT
from tests.optim.specs import CASES
from tests.picture import DOCUMENT, drawn
from tests.tables import for_each
from zmqps import __version__
from zmqps.checkpoint.torch_state import TWINS
from zmqps.optim import OptimizerSpec
from zmqps.optim.registry import BUILTIN

pytestmark = pytest.mark.tree

DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(path for top in ("docs", "examples", "bench", "deploy") for path in ROOT.glob(f"{top}/**/*.md")),
]
#: Not the changelog: it tells what was.
PRESENT = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]

#: A path in backticks is one from here, from the package, from the document's folder, or a file's name alone.
FILE = re.compile(r"`([\w./<>-]*/[\w./<>-]*|[\w<>-]+\.(?:py|md|toml|svg|json|npz))`")
#: Files of the user's, of a running cluster, that make writes, and of other projects.
NOT_OURS = ("train.py", "eighths.py", "runs/", "dist/", "build/docs", ".zmqps/", "/", "summary.json", "manifest.json")

DOTTED = re.compile(r"\bzmqps(?:\.[A-Za-z_]\w*)+")
#: The entry-point group, which is no module.
NO_MODULE = {"zmqps.optimizers"}
#: What cannot be imported without a framework is read.
OF_EXTRAS = {
    "zmqps.jax": ROOT / "zmqps/jax.py",
    "zmqps.keras": ROOT / "zmqps/keras.py",
    "zmqps.torch": ROOT / "zmqps/torch",
}


def missing_files(document: Path, text: str) -> Iterator[str]:
    """Yield the paths in backticks that lead nowhere; ``<name>`` stands for any name, its folder must exist."""
    for path in FILE.findall(text):
        if path.startswith(NOT_OURS):
            continue
        if "<" in path:
            path = path.rpartition("/")[0]
        places = (
            ROOT,
            ROOT / "zmqps",
            *ROOT.glob("zmqps/core/*/"),
            document.parent,
        )  # a machine's parts, from its room
        if "/" not in path and path in _names():
            continue
        if not any((place / path).exists() for place in places):
            yield f"{document.name}: {path}"


@cache
def _names() -> set[str]:
    return {path.name for top in ("zmqps", "bench", "tests", "docs") for path in ROOT.glob(f"{top}/**/*")}


def missing_names(document: Path, text: str) -> Iterator[str]:
    """Yield the names such as zmqps.data.split that cannot be imported."""
    for name in DOTTED.findall(text):
        if name not in NO_MODULE and not is_importable(name):
            yield f"{document.name}: {name}"


@cache
def is_importable(name: str) -> bool:
    found, *rest = name.split(".")
    thing = import_module(found)
    for number, part in enumerate(rest):
        found = f"{found}.{part}"
        if found in OF_EXTRAS:
            place = OF_EXTRAS[found]
            modules = [
                ast.parse(file.read_text()) for file in (sorted(place.glob("*.py")) if place.is_dir() else [place])
            ]
            names = {node.name for module in modules for node in ast.walk(module) if hasattr(node, "name")}
            return {*rest[number + 1 :]} <= names
        try:
            thing = getattr(thing, part) if hasattr(thing, part) else import_module(found)
        except ModuleNotFoundError:
            return False
    return True


def test_files_named_in_the_documents_exist() -> None:
    assert [text for document in PRESENT for text in missing_files(document, document.read_text())] == []


def test_names_of_the_package_in_the_documents_can_be_imported() -> None:
    assert [text for document in DOCUMENTS for text in missing_names(document, document.read_text())] == []


def test_the_picture_of_rooms_is_that_of_the_tree() -> None:
    assert DOCUMENT.read_text() == drawn(DOCUMENT.read_text()), "run `make picture`"


def test_the_tables_of_roles_are_those_of_the_source() -> None:
    assert roles.DOCUMENT.read_text() == roles.drawn(roles.DOCUMENT.read_text()), "run `make roles`"


def test_the_table_of_options_is_that_of_the_commands() -> None:
    text = options.DOCUMENT.read_text()
    assert options.drawn(text) == text, "make options"


def test_the_example_file_is_that_of_the_commands() -> None:
    assert options.EXAMPLE.read_text() == options.example(), "make options"


def test_the_tables_of_metrics_are_those_of_the_catalogue() -> None:
    assert figures.DOCUMENT.read_text() == figures.drawn(figures.DOCUMENT.read_text()), "run `make metrics`"


@for_each(
    "text, missing",
    [
        ("`core/job/keyspace.py` `zmqps/optim/` `zmqps/codecs/<name>.py` `machine.py` `bench/suite.py` `train.py`", []),
        ("`core/keyspace.py`", ["a.md: core/keyspace.py"]),
        ("`zmqps/sparse/<name>.py`", ["a.md: zmqps/sparse"]),
        ("`foreigner.py`", ["a.md: foreigner.py"]),
        ("zmqps.data.split(10), `zmqps.errors.PSError`, zmqps.optimizers", []),
        ("`zmqps.data.spilt`", ["a.md: zmqps.data.spilt"]),
        ("zmqps.session.Session", ["a.md: zmqps.session.Session"]),
    ],
)
def test_a_name_that_leads_nowhere_is_seen(text: str, missing: list[str]) -> None:
    document = ROOT / "docs" / "a.md"
    assert [*missing_files(document, text), *missing_names(document, text)] == missing


def test_links_in_the_documents_lead_to_files() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text())
        if "://" not in target and not target.startswith("mailto:") and not (document.parent / target).exists()
    ]
    assert broken == []


def test_make_targets_named_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (document.name, target)
        for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for code in re.findall(r"```.*?```|`[^`]+`", document.read_text(), re.DOTALL)
        for target in re.findall(r"^`?make ([a-z][a-z-]*)", code, re.MULTILINE)
    }
    assert [f"{document}: make {target}" for document, target in sorted(named) if target not in targets] == []


def test_the_reference_has_every_public_name() -> None:
    modules = set(zmqps._MODULES)
    assert {path.stem for path in (ROOT / "docs/reference").glob("*.md")} == {"index", "package", *modules}
    there = set(re.findall(r"^\.\. auto\w+:: (\w+)$", (ROOT / "docs/reference/package.md").read_text(), re.MULTILINE))
    assert there == set(zmqps.__all__) - modules - {"__version__", "PSError"}  # the latter is of zmqps.errors


def test_the_changelog_begins_with_what_is_unreleased_and_has_the_version() -> None:
    unreleased, *released = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert unreleased == "[Unreleased]"
    assert [head for head in released if not re.fullmatch(r"\[\d+\.\d+\.\d+\w*\] - \d{4}-\d\d-\d\d", head)] == []
    version, _, development = __version__.partition(".dev")
    assert [head for head in released if head.startswith(f"[{version}] ")] == ([] if development else released[:1])


def _rows(document: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose head begins so."""
    _, _, text = (ROOT / "docs" / document).read_text().partition(f"\n{head}")
    lines = text.partition("\n\n")[0].split("\n")[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _named(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_table_of_optimizers_has_each_with_its_options_and_their_defaults() -> None:
    written = {
        _named(name)[0]: {"learning_rate": float(rate.split(",")[0])}
        | {option: ast.literal_eval(value) for option, value in re.findall(r"`(\w+)=([^`]+)`", options)}
        for name, rate, options in _rows("optimizers.md", "| `zmqps.optim.`")
    }
    shared = {f.name: f.default for f in fields(OptimizerSpec) if f.name != "learning_rate"}
    there = {
        name: {f.name: f.default for f in fields(cls) if f.init and shared.get(f.name) != f.default}
        for name, cls in BUILTIN.items()
    }
    assert written == there, "the first table of docs/optimizers.md"


def test_the_table_of_numbers_that_change_has_each_of_every_optimizer() -> None:
    written = {
        name: {"learning_rate", "weight_decay", "initial_accumulator_value", *_named(numbers)} - {"nesterov"}
        for names, numbers in _rows("optimizers.md", "| optimizer | what can be set")
        for name in _named(names)
    }
    dense = {name: cls for name, cls in BUILTIN.items() if not cls().row_slots}
    there = {name: {"initial_accumulator_value", *cls.numbers()} for name, cls in dense.items()}
    assert written == there, "the table of docs/optimizers.md about numbers that change"


def test_the_tables_of_optimizers_of_pytorch_have_each() -> None:
    assert set(TWINS) == {case.spec.name for case in CASES.values() if case.torch}
    assert {name for row in _rows("checkpoints.md", "| zmqps | `torch.optim`") for name in _named(row[0])} == set(TWINS)
    assert {name for row in _rows("torch.md", "| `torch.optim`") for name in _named(row[-1])} == set(TWINS)


def test_each_line_of_what_pytorch_has_names_a_test_that_there_is() -> None:
    text = (ROOT / "docs/torch.md").read_text()
    rows = text.partition("## What is supported")[2].partition("\n## ")[0].splitlines()
    named = [
        row.rpartition("| `")[2].rstrip("` |") for row in rows if row.startswith("| ") and not row.startswith("| what")
    ]
    assert len(named) > 20
    missing = []
    for name in named:
        path, _, test = name.partition("::")
        file = ROOT / "tests/torch" / path
        if not file.exists() or f"def {test}(" not in file.read_text():
            missing.append(name)
    assert missing == []
