"""``zmqps --help``: every command where it belongs, in a terminal of 80 columns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.pace import allow
from tests.tables import for_each
from zmqps import __version__
from zmqps.cli.main import SECTIONS, cli, run
from zmqps.core.protocol import exits


def all_below(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a group and all commands below it, with their whole names."""
    yield name, group
    for one in group.commands.values():
        whole = f"{name} {one.name}"
        yield from all_below(one, whole) if isinstance(one, click.Group) else [(whole, one)]


COMMANDS = dict(all_below(cli, "zmqps"))
GROUPS = {name: one for name, one in COMMANDS.items() if isinstance(one, click.Group)}


def help_of(name: str) -> str:
    return CliRunner().invoke(COMMANDS[name], ["--help"], prog_name=name, terminal_width=80).output


def summaries(group: click.Group, name: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a group's help, and what it says of each."""
    shown = help_of(name)
    listed = "|".join(map(re.escape, group.commands))
    yield from re.findall(rf"^  ({listed}) +(\S.*(?:\n {{10,}}\S.*)*)$", shown, re.MULTILINE)


@for_each("name", GROUPS)
def test_what_the_help_says_of_each_command_fits_in_its_line(name: str) -> None:
    found = dict(summaries(GROUPS[name], name))
    assert set(found) == {str(one.name) for one in GROUPS[name].commands.values() if not one.hidden}
    assert [text for text in found.values() if text.endswith("...") or "\n" in text] == []


def test_what_zmqps_says_of_each_command_takes_few_characters() -> None:
    assert [text for _, text in summaries(cli, "zmqps") if len(text) > 45] == []


def test_a_shell_completes_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        env = {"_ZMQPS_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        done = subprocess.run(
            [sys.executable, "-c", "from zmqps.cli.main import main; main()"],
            env={**os.environ, **env}, capture_output=True, text=True, timeout=allow(60), check=False,
        )  # fmt: skip
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("zmqps", "sta") == ["stack", "status"]
    assert completed("zmqps", "scale", "--serv") == ["--servers"]


@for_each("name", COMMANDS)
def test_a_commands_help_fits_in_80_columns(name: str) -> None:
    assert [line for line in help_of(name).splitlines() if len(line) > 80] == []


def test_the_help_lists_the_commands_by_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == exits.OK
    titles = re.findall(r"^(\w+):\n", capsys.readouterr().out, re.MULTILINE)
    assert titles == ["Options", "Run", "Watch", "Change", "Files", "Nodes"]
    assert sum(len(found) for found in SECTIONS.values()) == len(cli.commands), "each in one section"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == exits.OK
    assert capsys.readouterr().out == f"zmqps {__version__}\n"
