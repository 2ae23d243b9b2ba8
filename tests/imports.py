"""The package's modules and their imports, read off the source."""

from __future__ import annotations

import ast
import gc
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

#: Who imports whom: modules by path, or rooms.
Graph = dict[str, set[str]]


class Import(NamedTuple):
    line: int
    names: tuple[str, ...]  # `from a import b` is both a and a.b, for b may be a module
    happens: str  # "on import", "on call" or "never" (under TYPE_CHECKING)


class Module(NamedTuple):
    path: str
    tree: ast.Module


def parse(path: str, source: str) -> Module:
    return Module(path, ast.parse(source, path))


def modules(*places: str) -> list[Module]:
    """Return the package's modules, all of them or those in the named files and folders (which end in a slash)."""
    gc.disable()  # the collector would look at the trees that there are already, again and again
    try:
        return [_module(path) for path in _paths() if not places or is_in(path, places)]
    finally:
        gc.enable()


@cache
def _paths() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("zmqps/**/*.py"))]


@cache
def _module(path: str) -> Module:
    return parse(path, (ROOT / path).read_text())


@cache
def nodes(module: Module) -> Sequence[ast.AST]:
    """Return all nodes of a module's tree; every rule looks at them, and to walk there takes longer than to look."""
    return list(ast.walk(module.tree))


def is_in(path: str, places: Collection[str]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(module: Module) -> Sequence[Import]:
    """Return every import, also those inside functions and under TYPE_CHECKING."""
    return list(_imports(module))


def _imports(module: Module) -> Iterator[Import]:
    happens = {}
    for node in nodes(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            happens.update(dict.fromkeys(ast.walk(node), "on call"))
        elif isinstance(node, ast.If) and _says(node.test, "TYPE_CHECKING"):
            happens.update({inside: "never" for statement in node.body for inside in ast.walk(statement)})
    for node in nodes(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, (alias.name,), happens.get(node, "on import"))
        elif isinstance(node, ast.ImportFrom):
            package = module.path.split("/")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(node.lineno, (base, f"{base}.{alias.name}"), happens.get(node, "on import"))


def _says(node: ast.expr, name: str) -> bool:
    """Whether it is a name, or one of a module's, as ``typing.TYPE_CHECKING``."""
    return name in (getattr(node, "id", None), getattr(node, "attr", None))


@cache
def module_graph() -> Graph:
    """Return which module imports which, by their paths, and the packages that are entered for it.

    Imports for type checkers count, too.
    """
    import grimp  # only here: most tests need no more than ROOT

    graph = grimp.build_graph("zmqps", cache_dir=None)
    path_of = {dotted(path): path for path in _paths()}
    found: Graph = {}
    for name, path in path_of.items():
        imported = graph.find_modules_directly_imported_by(name)
        entered = {".".join(other.split(".")[:depth]) for other in imported for depth in range(1, other.count(".") + 1)}
        found[path] = {
            path_of[other] for other in imported | {e for e in entered if not f"{name}.".startswith(f"{e}.")}
        }
    return found
