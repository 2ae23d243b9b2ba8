"""The package's imports, read off its source: what a module imports, and what that makes of its rooms.

A *room* is a folder of the package, or a module that stands alone on top of it: ``core/worker``, ``net/lane``,
``data``. The package's own ``__init__`` is the room ``zmqps``. Folders within a room have its modules by subject.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

#: Rooms that lie in others.
WITHIN = ("core/coordinator/consistency", "net/lane")

#: Who imports whom: modules by path, or rooms.
Graph = dict[str, set[str]]


class Import(NamedTuple):
    line: int
    names: tuple[str, ...]  # `from a import b` is both a and a.b, for b may be a module
    happens: str  # "on import", "on call" or "never" (under TYPE_CHECKING)


class Module(NamedTuple):
    path: str
    tree: ast.Module
    num_lines: int


def parse(path: str, source: str) -> Module:
    return Module(path, ast.parse(source, path), source.count("\n"))


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


# --- modules and rooms --------------------------------------------------------------------------


def room_of(path: str) -> str:
    """Return the room of a module, say ``net/lane`` for ``zmqps/net/lane/shm.py``."""
    folder, _, file = path.removeprefix("zmqps/").rpartition("/")
    if not folder:
        return "zmqps" if file == "__init__.py" else file.removesuffix(".py")
    parts = folder.split("/")
    return folder if folder in WITHIN else "/".join(parts[: 2 if parts[0] == "core" else 1])


def module_graph(found: Collection[Module], *, packages: bool = False) -> Graph:
    """Return which module imports which, by their paths; imports for type checkers count, too.

    ``packages``: with a module the packages are imported that it lies in.
    """
    path_of = {dotted(module.path): module.path for module in found}
    graph: Graph = {module.path: set() for module in found}
    for module in found:
        for names in (entry.names for entry in imports(module)):
            targets = [path_of[name] for name in names if name in path_of]
            graph[module.path].update(targets[-1:])  # the longest name: a.b rather than a
            if packages and targets:
                graph[module.path].update(_entered(module.path, targets[-1]))
        graph[module.path].discard(module.path)
    return graph


def _entered(path: str, target: str) -> Iterator[str]:
    """Yield the packages that are imported with a module of theirs, by one that lies in none of them."""
    for folder in Path(target).parents:
        if (ROOT / folder / "__init__.py").exists() and not path.startswith(f"{folder.as_posix()}/"):
            yield f"{folder.as_posix()}/__init__.py"


def room_graph(graph: Graph) -> Graph:
    """Return which room imports which."""
    rooms: Graph = {}
    for path, targets in graph.items():
        room = room_of(path)
        rooms.setdefault(room, set()).update({room_of(target) for target in targets} - {room})
    return rooms


def circles(graph: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Return the groups whose members all lead to each other."""
    leads_to = {node: reachable(graph, node) for node in graph}
    groups = {frozenset(other for other in leads_to[node] if node in leads_to[other]) for node in graph}
    return sorted((set(group) for group in groups if group), key=sorted)


def reachable(graph: Mapping[str, Collection[str]], start: str) -> set[str]:
    """Return what can be reached by one arrow or more."""
    found: set[str] = set()
    rest = list(graph[start])
    while rest:
        if (node := rest.pop()) not in found:
            found.add(node)
            rest += graph[node]
    return found


def reduced(graph: Mapping[str, Collection[str]]) -> Graph:
    """Return the graph, which has no circle, without the arrows that a longer way makes plain."""
    return {
        node: {target for target in targets if not any(target in reachable(graph, other) for other in targets)}
        for node, targets in graph.items()
    }
