"""Counts what makes the core hard to hold in one's head; `make counts` prints it, of this tree or of another."""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.imports import ROOT
from tests.kernel import is_extension

#: A function may have so many lines, a class so many attributes, a folder so many files.
MAX_LINES, MAX_ATTRIBUTES, MAX_FILES = 60, 12, 20
#: The rooms of the core whose lines are counted together.
ROOMS = ("coordinator", "server", "worker", "protocol")
#: Constants that say when something is sent or looked at again.
RETRY = re.compile(r"_?(\w+_)?(RETRY|RESEND|LOOK|AGAIN|POLL)(_\w+)?_S")
#: Definitions that keep a part's state by hand, and those that keep its time.
KEEPING = {"dump", "restore", "again"}
TIMING = {"next_deadline", "on_deadline"}

Tree = dict[str, ast.Module]


def parsed(root: Path, place: str = "zmqps") -> Tree:
    """Return the modules of a folder of the package by their paths."""
    gc.disable()  # the collector would look at the trees that there are already, again and again
    try:
        paths = sorted(root.glob(f"{place}/**/*.py"))
        return {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in paths}
    finally:
        gc.enable()


@cache
def walked(module: ast.Module) -> list[ast.AST]:
    """Return all nodes of a module."""
    return [*ast.walk(module)]


def classes(tree: Tree, place: str = "zmqps/") -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield each class of a folder with the path of its module."""
    for path, module in tree.items():
        if path.startswith(place):
            yield from ((path, node) for node in walked(module) if isinstance(node, ast.ClassDef))


def functions(tree: Tree, place: str = "zmqps/") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each function of a folder with the path of its module."""
    for path, module in tree.items():
        if path.startswith(place):
            for node in walked(module):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield path, node


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes of a class: its annotated fields, and what `__init__` assigns to ``self``."""
    found = set()
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) if "ClassVar" not in ast.unparse(statement.annotation):
                found.add(name)
            case ast.FunctionDef(name="__init__"):
                found |= {inner.attr for inner in ast.walk(statement) if _is_stored(inner)}  # type: ignore[attr-defined]
    return found


def _is_stored(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
            return True
    return False


def long_functions(tree: Tree, place: str = "zmqps/") -> dict[str, int]:
    """Return the functions with too many lines beside their docstrings, and how many they have."""
    found = {f"{path}:{node.name}": _span(node) - _documented(node) for path, node in functions(tree, place)}
    return {name: lines for name, lines in found.items() if lines > MAX_LINES}


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def _documented(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's docstring."""
    return _span(function.body[0]) if ast.get_docstring(function, clean=False) is not None else 0


def large_classes(tree: Tree, place: str = "zmqps/") -> dict[str, int]:
    """Return the classes with too many attributes, and how many they have."""
    found = {f"{path}:{node.name}": len(attributes(node)) for path, node in classes(tree, place)}
    return {name: number for name, number in found.items() if number > MAX_ATTRIBUTES}


def double_names(tree: Tree) -> dict[str, int]:
    """Return the public names that several classes of the core have, and how many."""
    names = Counter(node.name for _, node in classes(tree, "zmqps/core/") if not node.name.startswith("_"))
    return {name: number for name, number in names.items() if number > 1}


def large_folders(tree: Tree) -> dict[str, int]:
    """Return the folders with too many files, and how many they have."""
    folders = Counter(path.rpartition("/")[0] for path in tree)
    return {folder: number for folder, number in folders.items() if number > MAX_FILES}


def message_types(tree: Tree) -> list[str]:
    """Return the messages that the nodes of a cluster send each other: the classes with a number of their own."""
    return [node.name for _, node in classes(tree, "zmqps/core/protocol/") if any(map(_is_kind, node.body))]


def _is_kind(statement: ast.stmt) -> bool:
    match statement:
        case ast.AnnAssign(target=ast.Name(id="kind"), value=ast.Constant(value=int())):
            return True
    return False


def predicates(tree: Tree) -> list[str]:
    """Return the public methods of the core that answer yes or no: what its parts ask each other."""
    return [
        f"{node.name}.{inner.name}"
        for room in ROOMS[:3]
        for _, node in classes(tree, f"zmqps/core/{room}/")
        for inner in node.body
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and _answers(inner) == "bool"
    ]


def _answers(function: ast.FunctionDef) -> str:
    return ast.unparse(function.returns) if function.returns else ""


def retry_constants(tree: Tree) -> list[str]:
    """Return the constants of the core that say when something is sent or looked at again."""
    return [
        f"{path}:{target.id}"
        for path, module in tree.items()
        if path.startswith("zmqps/core/")
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and RETRY.fullmatch(target.id)
    ]


def lines(root: Path, place: str) -> int:
    """Return the lines of the modules in a folder, those below it too."""
    return sum(path.read_bytes().count(b"\n") for path in root.glob(f"{place}/**/*.py"))


def counts(root: Path) -> dict[str, int]:
    """Return all that is counted of a tree."""
    tree = parsed(root)
    defined = Counter(node.name for _, node in functions(tree, "zmqps/core/"))
    calls = Counter(_called(node) for path in tree if path.startswith("zmqps/core/") for node in walked(tree[path]))
    short = [path for path in tree if (root / path).read_bytes().count(b"\n") <= MAX_LINES]
    found = {"files of the package": len([path for path in root.glob("zmqps/**/*") if _is_shipped(path)])}
    found |= {f"modules with at most {MAX_LINES} lines": len(short)}
    found |= {"lines of the package": lines(root, "zmqps"), "lines of core": lines(root, "zmqps/core")}
    found |= {f"lines of core/{room}": lines(root, f"zmqps/core/{room}") for room in ROOMS}
    found["lines of " + "+".join(ROOMS)] = sum(lines(root, f"zmqps/core/{room}") for room in ROOMS)
    of_kernel = [path for path in tree if path.startswith("zmqps/core/") and not is_extension(path)]
    found["lines of the kernel"] = sum((root / path).read_bytes().count(b"\n") for path in of_kernel)
    found["lines of tests/core"] = lines(root, "tests/core")
    found["message types"] = len(message_types(tree))
    found["predicates of parts"] = len(predicates(tree))
    found["retry constants"] = len(retry_constants(tree))
    found["definitions of dump, restore, again"] = sum(defined[name] for name in KEEPING)
    found["definitions of next_deadline, on_deadline"] = sum(defined[name] for name in TIMING)
    found["calls of changed"] = calls["changed"] + calls["_changed"]
    found["lambdas of the coordinator"] = sum(
        isinstance(node, ast.Lambda)
        for path in tree
        if path.startswith("zmqps/core/coordinator/")
        for node in walked(tree[path])
    )
    found["enums of core"] = sum(
        "Enum" in ast.unparse(base) for _, node in classes(tree, "zmqps/core/") for base in node.bases
    )
    found[f"classes with over {MAX_ATTRIBUTES} attributes, in core"] = len(large_classes(tree, "zmqps/core/"))
    found[f"classes with over {MAX_ATTRIBUTES} attributes"] = len(large_classes(tree))
    found[f"functions with over {MAX_LINES} lines"] = len(long_functions(tree))
    found[f"folders with over {MAX_FILES} files"] = len(large_folders(tree))
    found["files of the largest folder"] = max(Counter(path.rpartition("/")[0] for path in tree).values())
    found["names of several classes of core"] = len(double_names(tree))
    return found


def _is_shipped(path: Path) -> bool:
    return path.is_file() and path.parent.name != "__pycache__"


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def main() -> None:
    """Print the counts of this tree, and beside them those of the trees that are named."""
    roots = [Path(argument) for argument in sys.argv[1:]] + [ROOT]
    rows = [counts(root) for root in roots]
    for name in rows[-1]:
        print(f"{name:48}", *(f"{row[name]:>8,}" for row in rows))


if __name__ == "__main__":
    main()
