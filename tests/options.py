"""Writes the table of options into docs/operations.md, and the example file; `make options` runs it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

import click

from tests.imports import ROOT
from zmqps.cli.main import cli
from zmqps.cli.settings import ENDPOINT_KEY, ENDPOINT_OPTION, Setting, Size
from zmqps.settings.kinds import size_text

DOCUMENT, EXAMPLE = ROOT / "docs" / "operations.md", ROOT / "deploy" / "cluster.toml"
BEGIN, END = "<!-- written by `make options` -->", "<!-- end of what `make options` writes -->"
#: Of these the table has all options; of the others those that several commands have.
STARTING = ("coordinator", "server", "up", "run", "launch")
HEAD = """\
# Every option of zmqps that is not about one call only, with its default; `make options` writes this file. A line that
# begins with #key has an example: that option has no default, or not the same for all commands. Use the file with
# `zmqps --config deploy/cluster.toml …`, or name it in ZMQPS_CONFIG; flags and ZMQPS_* variables win over it.
# docs/operations.md explains each option.
#
# At the top: what means the same for every command. In [command]: for this one, and it wins over the top.
"""

Options = list[tuple[str, click.Option]]  # with the command that has each


def options(group: click.Group) -> Options:
    """Return the options of all commands of a group, first of those that start nodes."""
    names = sorted(group.commands, key=lambda name: STARTING.index(name) if name in STARTING else len(STARTING))
    of_all = ((name, param) for name in names for param in group.commands[name].params)
    return [(name, param) for name, param in of_all if isinstance(param, click.Option) and not param.hidden]


# --- the table ----------------------------------------------------------------------------------


def drawn(document: str, group: click.Group = cli) -> str:
    """Return the document with the table as the source has it."""
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    return "\n".join([before + BEGIN, "", *table(group), "", END + after])


def table(group: click.Group) -> Iterator[str]:
    """Yield a table of options: which commands have each, its default, and what it means."""
    rows: dict[tuple[str, str], Options] = {}
    found = options(group)
    commands: dict[str, set[str]] = {}
    for name, option in found:
        commands.setdefault(flag_of(option), set()).add(name)
    for name, option in found:
        if name in STARTING or len(commands[flag_of(option)]) > 1:
            rows.setdefault((flag_of(option), option.help or ""), []).append((name, option))
    yield from ("| option | commands | default | meaning |", "|---|---|---|---|")
    for (flag, text), having in sorted(rows.items(), key=lambda row: list(commands).index(row[0][0])):
        names, defaults = ", ".join(name for name, _ in having), dict.fromkeys(_default(one) for _, one in having)
        see = next((one.see for _, one in having if isinstance(one, Setting) and one.see), "")
        meaning = text + (f" [More]({see.removeprefix(DOCUMENT.name)})" if see else "")
        yield f"| `{flag}` | {names} | {', '.join(defaults)} | {meaning} |"


def flag_of(option: click.Option) -> str:
    """Return the longest flag of an option."""
    return max(option.opts, key=len)


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default if " " in option.show_default else f"`{option.show_default}`"
    value = option.default
    if option.is_flag:
        return "on" if value is True else "off"
    if not isinstance(value, str | int | float | os.PathLike) or value == "":
        return ""
    return f"`{value}`" if not isinstance(value, int | float) else f"{value:g}"


# --- the example file ---------------------------------------------------------------------------


def example(group: click.Group = cli) -> str:
    """Return the example file: what is shared at the top, then a table for each command."""
    found = [(name, one) for name, one in options(group) if isinstance(one, Setting)]
    having: dict[str, list[Setting]] = {}
    for _, one in found:
        if one.shared and one.name:
            having.setdefault(one.name, []).append(one)
    at_top = {name: ones for name, ones in having.items() if len(ones) > 1}
    text = HEAD
    for name, ones in at_top.items():
        same = len({one.default is True if one.is_flag else str(one.default) for one in ones}) == 1
        text += _entry(
            ones[0], ENDPOINT_KEY if name == ENDPOINT_OPTION else name, said=same and name != ENDPOINT_OPTION
        )
    for command in dict.fromkeys(name for name, _ in options(group)):
        own = [one for name, one in found if name == command and not (one.shared and one.name in at_top)]
        entries = [_entry(one, one.name or "") for one in own if one.shared or not one.is_flag]
        text += f"\n[{command}]\n" + "".join(entries).removeprefix("\n") if entries else ""
    return text


def _entry(option: Setting, name: str, *, said: bool = True) -> str:
    default = option.default is True if option.is_flag else option.default
    there = isinstance(default, str | int | float | os.PathLike) and default != ""
    shown = default if there and (said or option.example is None) else option.example
    if shown is None:
        shown = option.metavar or option.name or ""
    entry = f"{name.replace('_', '-')} = {_toml(shown, option)}"
    comment = "".join(f"# {line}\n" for line in wrap(option.help or "", 118))
    return f"\n{comment}{'' if there and said else '#'}{entry}\n"


def _toml(value: Any, option: Setting) -> str:
    if isinstance(value, str) and value.startswith("["):
        return value if option.multiple else json.dumps(value)
    if isinstance(option.type, Size) and isinstance(value, int):
        return json.dumps(size_text(value))
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))
    EXAMPLE.write_text(example())
