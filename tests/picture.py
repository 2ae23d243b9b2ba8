"""Draws the rooms of the package and who imports whom into docs/architecture.md; `make picture` runs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.imports import ROOT, Graph, module_graph, modules, reduced, room_graph, room_of
from tests.test_architecture import ROOMS

DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- written by `make picture` -->", "<!-- end of what `make picture` writes -->"

#: Not drawn: every room may import the errors, and these two have nothing to show.
PLAIN = {"errors", "core", "__main__"}


def drawn(document: str) -> str:
    """Return the document with the picture as the tree is now."""
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    rooms = room_graph(module_graph(modules()))
    lines = [before + BEGIN, "", *picture(rooms), "", *table(rooms), "", END + after]
    return "\n".join(lines)


def picture(rooms: Graph) -> Iterator[str]:
    """Yield a mermaid diagram: rooms in their layers, arrows for imports that no longer way makes plain."""
    shown = {room: targets - PLAIN for room, targets in rooms.items() if room not in PLAIN}
    yield from ("```mermaid", "flowchart TB")
    for number, (layer, names) in reversed([*enumerate(ROOMS.items())]):
        yield f'  subgraph layer{number}["{layer}"]'
        yield from (f'    {_id(room)}["{room}"]' for room in names if room in shown)
        yield "  end"
    for room, targets in reduced(shown).items():
        yield from (f"  {_id(room)} --> {_id(target)}" for target in sorted(targets))
    yield "```"


def table(rooms: Graph) -> Iterator[str]:
    """Yield a table of what each room is for, and of all it imports."""
    purposes = dict(_purposes())
    yield from ("| room | what it is for | imports, besides `errors` |", "|---|---|---|")
    for layer, names in reversed(ROOMS.items()):
        yield f"| **{layer}** | | |"
        for room in names:
            if room not in PLAIN:
                imported = (f"`{target}`" for others in ROOMS.values() for target in others if target in rooms[room])
                yield f"| `{room}` | {purposes[room]} | {', '.join(i for i in imported if i != '`errors`')} |"


def _purposes() -> Iterator[tuple[str, str]]:
    """Yield each room with the first line of its docstring."""
    for module in modules():
        room = room_of(module.path)
        if module.path in (f"zmqps/{room}/__init__.py", f"zmqps/{room}.py", "zmqps/__init__.py"):
            first = (ast.get_docstring(module.tree) or "").partition("\n")[0]
            yield room, first.replace("``", "`")


def _id(room: str) -> str:
    return room.replace("/", "_")


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))
