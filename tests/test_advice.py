"""Options and commands that texts of zmqps advise exist."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import zmqps
from zmqps import optim
from zmqps.cli.main import cli
from zmqps.core.job.spec import MEANS, NONFINITE_POLICIES, STRAGGLER_POLICIES

pytestmark = pytest.mark.tree

ROOT = Path(zmqps.__file__).parent
#: What is called in texts -> its options.
CALLED = {
    "init": zmqps.Worker.init,
    "connect": zmqps.connect,
    "LocalCluster": zmqps.LocalCluster,
    "push": zmqps.Worker.push,
    "pull": zmqps.Worker.pull,
    "ranges": zmqps.Worker.ranges,
    "group": optim.group,
}
WORDS = {"nonfinite": NONFINITE_POLICIES, "on_straggler": STRAGGLER_POLICIES, "mean": MEANS}


@cache
def texts() -> list[tuple[str, str]]:
    """Return each text of the package that is no docstring, with the file that it is in."""
    return [*_texts()]


def _texts() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        docs = {
            id(node.body[0].value) for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and node.body and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values]
                yield path.name, "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield path.name, node.value


def test_options_of_calls_that_are_advised_exist() -> None:
    wrong, found = [], 0
    for file, text in texts():
        for name, arguments in re.findall(r"\b(\w+)\(([^()]*\b\w+=[^()]*)\)", text):
            if name not in CALLED:
                continue
            known = inspect.signature(CALLED[name]).parameters
            for option, word in re.findall(r"\b(\w+)=(?:\"(\w+)\")?", arguments):
                found += 1
                if option not in known and "hyper" not in known:
                    wrong.append(f"{file}: {name}({arguments})")
                if word and word not in WORDS.get(option, (word,)):
                    wrong.append(f"{file}: {option}={word!r}")
    assert found > 10
    assert not wrong


def _options(command: click.Command) -> set[str]:
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        found |= _options(below)
    return found | {"--help", "-h"}


#: Flags of other programs, which some texts name.
OTHERS = {
    "--force-reinstall", "--only-binary", "--fmad", "--list-gpus", "--shm-size", "--gpus", "--scenario", "--seeds",
    "--workers-per-host", "--start", "--ntasks-per-node", "--xla_force_host_platform_device_count",
    "--cached", "--exclude-standard", "--others", "--files-from", "--from", "--ignore-missing-args",
    "--archive", "--compress", "--exclude", "--mkpath", "--rsh", "--pid",
}  # fmt: skip


def test_flags_that_are_advised_exist() -> None:
    known = _options(cli) | OTHERS
    found = {(file, flag) for file, text in texts() for flag in re.findall(r"(?<![\w-])(--[a-z][a-z-]+[a-z])", text)}
    assert len(found) > 50
    assert not {(file, flag) for file, flag in found if flag not in known}


def test_commands_that_are_advised_exist() -> None:
    for file, text in texts():
        for words in re.findall(r"(?:`|: |run |or )zmqps ([a-z]+(?: [a-z]+)?)", text):
            name, _, below = words.partition(" ")
            command = cli.commands.get(name)
            if command is None:
                pytest.fail(f"{file}: there is no command zmqps {name}: {text[:100]}")
            if isinstance(command, click.Group) and below and name in ("jobs", "keys"):
                assert below in command.commands, f"{file}: {words}"
