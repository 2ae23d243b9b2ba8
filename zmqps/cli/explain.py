"""``zmqps explain``: what an error means, by its number. The errors' docstrings are the pages, and docs/errors.md.

Docstrings that are shown are read from the source where Python has left them out (``python -OO``).
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from zmqps.core.protocol import exits
from zmqps.errors import BY_CODE, PSError
from zmqps.files import TEXT_NBYTES, read_file

#: The section that the docstring of each error has.
SECTION = "What to do next"

_HEAD = """# Errors

<!-- written by `make errors` from the docstrings in zmqps/errors -->

This page explains every error of zmqps by its number, and says what to do next. The number is at the end of a message
of `zmqps`, in the logs (`error=Z006`), and below a traceback in your script. `zmqps explain Z006` prints its section as
of the installed version. Import errors from `zmqps.errors`, whose docstring shows which is a kind of which; they have
their facts as attributes.
"""


@click.command()
@click.argument("errors", nargs=-1, metavar="[NUMBER]...")
@click.option("--all", "everything", is_flag=True, help="Print all pages, as docs/errors.md has them.")
def explain(errors: tuple[str, ...], everything: bool) -> int:
    """Say what an error means, and what to do.

    Errors are named by their number (Z006) or name; without one, all are listed.
    """
    if everything:
        click.echo(document(), nl=False)
        return exits.OK
    found = [_find(error) for error in errors]
    if not found:
        for cls in _in_order():
            click.echo(f"{cls.number}  {cls.__name__:<26}  {summary(cls)}")
    for number, cls in enumerate(found):
        _show(page(cls), first=not number)
    return exits.OK


def document() -> str:
    """Return all pages, with a table of them: docs/errors.md."""
    rows = [f"| [{cls.number}](#{cls.number.lower()}) | `{cls.__name__}` | {summary(cls)} |" for cls in _in_order()]
    table = "\n".join(["| number | error | what happened |", "|---|---|---|", *rows])
    return "\n".join([_HEAD, table, "", "\n".join(map(page, _in_order()))])


def summary(cls: type[PSError]) -> str:
    """Return the first paragraph of an error's page, in one line."""
    return " ".join(_sections(cls)[0].split("\n\n")[0].split())


def page(cls: type[PSError]) -> str:
    """Return the page about an error, in Markdown."""
    happened, todo = _sections(cls)
    builtin = [base.__name__ for base in cls.__bases__ if not issubclass(base, PSError)]
    of = f", a kind of `{'` and `'.join(builtin)}`" if builtin and cls is not PSError else ""
    title = f"## {cls.number}\n\n**`{cls.__name__}`**{of}"
    if cls.text != PSError.text:
        title += ". It says:\n\n```text\n" + re.sub(r"\{(\w+)[^}]*\}", r"<\1>", cls.text) + "\n```"
    return f"{title}\n\n{happened}\n\n{SECTION}:\n\n{todo}\n"


def _in_order() -> list[type[PSError]]:
    return [BY_CODE[code] for code in sorted(BY_CODE)]


def _sections(cls: type[PSError]) -> tuple[str, str]:
    """Return of a docstring what has happened, and what to do next."""
    doc = inspect.cleandoc(docstring(cls))
    parts = re.split(r"^(.+)\n-{3,}\n", doc, flags=re.MULTILINE)
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    return re.sub(r"``(.+?)``", r"`\1`", parts[0].strip()), named.get(SECTION, "").strip()


def _find(error: str) -> type[PSError]:
    if (match := re.fullmatch(r"[Zz]?(\d{1,6})", error)) and (cls := BY_CODE.get(int(match[1]))) is not None:
        return cls
    for cls in BY_CODE.values():
        if error.lower() in (cls.__name__.lower(), f"zmqps.errors.{cls.__name__}".lower()):
            return cls
    raise click.UsageError(f"no error is called {error!r}; zmqps explain lists all")


def _show(text: str, *, first: bool) -> None:
    if not sys.stdout.isatty():
        click.echo(("" if first else "\n") + text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))


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
