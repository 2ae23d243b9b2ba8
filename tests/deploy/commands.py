"""What the files in deploy/ run: the lists and lines in which commands stand, read without a parser of YAML."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click

from tests.imports import ROOT
from zmqps.cli.main import cli

DEPLOY = ROOT / "deploy"
#: A list in JSON's form, after the key under which manifests and Dockerfiles have a command.
LIST = re.compile(r'(?:\b(?:args|command|test|entrypoint):|^(?:ENTRYPOINT|CMD))\s*(\[\s*"[^\]]*\])', re.MULTILINE)


def lists(path: Path) -> list[list[str]]:
    """Return the commands of a manifest or Dockerfile, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    return [json.loads(found) for found in LIST.findall(text)]


def zmqps_arguments(words: list[str]) -> list[str] | None:
    """Return what a command hands to zmqps; None: it runs something else."""
    if words[0] == "CMD":  # of a health check
        words = words[1:]
    if Path(words[0]).name == "zmqps":
        return words[1:]
    return words if words[0] in cli.commands else None


def parse(arguments: list[str]) -> dict[str, object]:
    """Return the options of a command as click reads them; raise `click.UsageError` for what it does not know."""
    name, *rest = [re.sub(r"\$\(\w+\)|%i", "5571", word) for word in arguments]
    command = cli.commands[name]
    while isinstance(command, click.Group):
        name, *rest = rest
        command = command.commands[name]
    return command.make_context(name, rest).params


def settings(path: Path) -> dict[str, list[str]]:
    """Return what a systemd unit says: each key, whatever its section, with its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#;[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def exec_start(path: Path) -> list[str]:
    """Return the command of a unit."""
    [line] = settings(path)["ExecStart"]
    return shlex.split(line)
