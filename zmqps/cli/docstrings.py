"""Docstrings that are shown: read from the source where Python has left them out (``python -OO``)."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from zmqps.files import TEXT_NBYTES, read_file


def docstring(of: Any) -> str:
    """Return the docstring of a class or function at the top of its module; empty where there is none."""
    if __debug__ or of.__doc__:
        return of.__doc__ or ""
    return _read(of.__module__).get(of.__name__, "")


@cache
def _read(module: str) -> dict[str, str]:
    """Return the docstrings of all classes and functions of a module, by name."""
    path = import_module(module).__file__ or ""
    if not path.endswith(".py"):
        return {}
    file, kinds = Path(path), (ast.ClassDef, ast.FunctionDef)
    files = sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]  # a room shows them as its own
    nodes = [node for one in files for node in ast.walk(ast.parse(read_file(one, TEXT_NBYTES)))]
    return {node.name: ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)}


def give_help(command: click.Command) -> None:
    """Let a command, and those below it, have the help that Python has left out."""
    if command.help is None and command.callback is not None:
        command.help = docstring(command.callback) or None
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        give_help(below)
