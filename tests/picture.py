"""Draws the rooms of the package and who imports whom into docs/architecture.md; `make picture` runs it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache

import grimp

from tests.imports import ROOT, Graph

DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- written by `make picture` -->", "<!-- end of what `make picture` writes -->"

#: By its first room, from the ground up, what a group of rooms is.
GROUPS = {
    "words": "Ground: errors, checks, optimizers, codecs, rows",
    "core/protocol": "Core: machines that do no IO",
    "extras": "Doors: sockets, shared memory, GPUs, recording, files",
    "client": "Processes: what runs a machine",
    "worker": "Public: what scripts and users type",
}
#: Rooms within rooms, and what is drawn before the commands: the package's own `__init__`.
AFTER = {"core/node": "core/coordinator/consistency", "net": "net/lane", "workers": "zmqps"}
#: Not drawn: every room may import the errors, and the other has nothing to show.
PLAIN = {"errors", "__main__"}


@cache
def rooms() -> list[str]:
    """Return the rooms by the layers of pyproject.toml, from the ground up."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {c["containers"][0]: reversed(c["layers"]) for c in contracts if c["type"] == "layers"}
    of_core = [f"core/{room}" for line in layers["zmqps.core"] for room in line.split(" | ")]
    found = [room for line in layers["zmqps"] for room in line.split(" | ")]
    at = found.index("core")
    found[at : at + 1] = of_core
    for room, other in AFTER.items():
        found.insert(found.index(room) + 1, other)
    return found


def groups() -> dict[str, list[str]]:
    """Return the rooms in their groups, both from the ground up."""
    found: dict[str, list[str]] = {}
    for room in rooms():
        if room in GROUPS:
            found[GROUPS[room]] = []
        found[[*found][-1]].append(room)
    return found


def room_graph() -> Graph:
    """Return which room imports which; imports inside functions and for type checkers count, too."""
    graph = grimp.build_graph("zmqps", cache_dir=None)
    found: Graph = {room: set() for room in rooms()}
    for module in graph.modules:
        for target in graph.find_modules_directly_imported_by(module):
            found[room_of(module)].add(room_of(target))
    return {room: targets - {room} for room, targets in found.items()}


def room_of(module: str) -> str:
    """Return the innermost room that a module is in; what is in none is the package's own."""
    path = module.removeprefix("zmqps.").replace(".", "/")
    return max((room for room in rooms() if f"{path}/".startswith(f"{room}/")), key=len, default="zmqps")


def reduced(graph: Graph) -> Graph:
    """Return the graph, which has no circle, without the arrows that a longer way makes plain."""
    return {room: targets.difference(*(below(graph, target) for target in targets)) for room, targets in graph.items()}


def below(graph: Graph, room: str) -> set[str]:
    """Return what a room imports, itself or through others."""
    return graph[room].union(*(below(graph, target) for target in graph[room]))


def drawn(document: str) -> str:
    """Return the document with the picture as the tree is now."""
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    graph = room_graph()
    lines = [before + BEGIN, "", *picture(graph), "", *table(graph), "", END + after]
    return "\n".join(lines)


def picture(graph: Graph) -> Iterator[str]:
    """Yield a mermaid diagram: rooms in their layers, arrows for imports that no longer way makes plain."""
    shown = {room: targets - PLAIN for room, targets in graph.items() if room not in PLAIN}
    yield from ("```mermaid", "flowchart TB")
    for number, (layer, names) in reversed([*enumerate(groups().items())]):
        yield f'  subgraph layer{number}["{layer}"]'
        yield from (f'    {_id(room)}["{room}"]' for room in names if room in shown)
        yield "  end"
    for room, targets in reduced(shown).items():
        yield from (f"  {_id(room)} --> {_id(target)}" for target in sorted(targets))
    yield "```"


def table(graph: Graph) -> Iterator[str]:
    """Yield a table of what each room is for, and of all it imports."""
    yield from ("| room | what it is for | imports, besides `errors` |", "|---|---|---|")
    for group, names in reversed(groups().items()):
        yield f"| **{group}** | | |"
        for room in names:
            if room not in PLAIN:
                imported = (f"`{target}`" for target in rooms() if target in graph[room] - PLAIN)
                yield f"| `{room}` | {_purpose(room)} | {', '.join(imported)} |"


def _purpose(room: str) -> str:
    """Return the first line of a room's docstring."""
    places = (f"zmqps/{room}/__init__.py", f"zmqps/{room}.py", "zmqps/__init__.py")
    path = next(ROOT / place for place in places if (ROOT / place).exists())
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].replace("``", "`")


def _id(room: str) -> str:
    return room.replace("/", "_")


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))
