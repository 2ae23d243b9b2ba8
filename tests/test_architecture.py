"""The rules of CONTRIBUTING.md, read off the source: what each layer may import, and what nobody may do.

The tables come first; to allow something new, change a table and say in the commit why.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Sans-IO code: state machines, equations and encodings. It computes on what it is given and returns what it found.
PURE = ("zmqps/errors.py", "zmqps/core/", "zmqps/optim/", "zmqps/codecs/", "zmqps/jit.py")

#: All that sans-IO code may import: data, maths and itself. No clock, no chance, no threads, no files, no log.
PURE_MAY_IMPORT = {
    *("__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "enum", "fnmatch", "functools"),
    *("hashlib", "heapq", "inspect", "itertools", "math", "numbers", "operator", "reprlib", "string", "struct"),
    *("types", "typing"),
    "numpy",
    *("zmqps.errors", "zmqps.core", "zmqps.optim", "zmqps.codecs", "zmqps.jit"),
}
#: … what single files may have beside it,
EXCEPTIONS = {
    "zmqps/core/protocol/wire.py": {"msgpack"},
    "zmqps/optim/kernels.py": {"numba"},
    "zmqps/codecs/kernels.py": {"numba"},
    "zmqps/jit.py": {"numba"},
    "zmqps/optim/registry.py": {"importlib"},  # an optimizer's module by its name; a user's by its entry point
}
#: … and what may stand under `if TYPE_CHECKING:`, for it is never imported.
FOR_TYPING = {"typing_extensions"}
#: Never in sans-IO code, although no import gives it away.
PURE_NEVER_CALLS = {"open", "print", "input", "breakpoint"}

#: One door per library: it -> the only files that import it.
ONLY_IN = {
    "msgpack": {"zmqps/core/protocol/wire.py"},
    "zmq": {"zmqps/net/zeromq.py"},
    "numba": {"zmqps/optim/kernels.py", "zmqps/codecs/kernels.py", "zmqps/jit.py"},
    "cupy": {"zmqps/gpu/device.py"},
}
#: Slow to import or not installed everywhere: imported inside the function that needs it.
LAZY = {"numba", "cupy"}

#: Programs of their own: what two of them share belongs below them.
SHELLS = {"zmqps/nodes/server.py", "zmqps/nodes/coordinator.py", "zmqps/worker.py"}

#: Peer input must never become code.
UNSAFE_IMPORTS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "__import__"}

#: Longer than this and the file holds two nouns; the aim is 80 to 350.
MAX_LINES = 500

#: What `import zmqps.core.…` must not drag in, directly or through others.
CORE_LEAVES_OUT = {"asyncio", "zmq", "numba", "cupy"}


# --- reading the source -------------------------------------------------------------------------


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
    found = [(path, path.relative_to(ROOT).as_posix()) for path in sorted(ROOT.glob("zmqps/**/*.py"))]
    return [parse(name, path.read_text()) for path, name in found if not places or is_in(name, places)]


def is_in(path: str, places: tuple[str, ...] | set[str]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def imports(module: Module) -> Iterator[Import]:
    """Yield every import, also those inside functions and under TYPE_CHECKING."""
    happens = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            happens.update(dict.fromkeys(ast.walk(node), "on call"))
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            happens.update({inside: "never" for statement in node.body for inside in ast.walk(statement)})
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, (alias.name,), happens.get(node, "on import"))
        elif isinstance(node, ast.ImportFrom):
            package = module.path.split("/")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(node.lineno, (base, f"{base}.{alias.name}"), happens.get(node, "on import"))


def calls(module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id


def belongs_to(names: tuple[str, ...], allowed: set[str]) -> bool:
    return any(name == a or name.startswith(f"{a}.") for name in names for a in allowed)


# --- the rules, each a list of "file:line what" --------------------------------------------------


def pure_violations(module: Module) -> Iterator[str]:
    allowed = PURE_MAY_IMPORT.union(*(extra for place, extra in EXCEPTIONS.items() if is_in(module.path, (place,))))
    for found in imports(module):
        if not belongs_to(found.names, allowed | FOR_TYPING if found.happens == "never" else allowed):
            yield f"{module.path}:{found.line} imports {found.names[-1]}"
    for line, name in calls(module):
        if name in PURE_NEVER_CALLS:
            yield f"{module.path}:{line} calls {name}()"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "random" and ast.unparse(node.value) in ("np", "numpy"):
            yield f"{module.path}:{node.lineno} uses numpy.random; a seed or generator is the caller's to give"


def door_violations(module: Module) -> Iterator[str]:
    for found in imports(module):
        for library, places in ONLY_IN.items():
            if belongs_to(found.names, {library}) and module.path not in places:
                yield f"{module.path}:{found.line} imports {library}, which is for {', '.join(places)}"
        if found.happens == "on import" and belongs_to(found.names, LAZY):
            yield f"{module.path}:{found.line} imports {found.names[0]} outside a function"


def shell_violations(module: Module) -> Iterator[str]:
    others = {shell.removesuffix(".py").replace("/", ".") for shell in SHELLS - {module.path}}
    for found in imports(module):
        if belongs_to(found.names, others):
            yield f"{module.path}:{found.line} imports {found.names[0]}"


def safety_violations(module: Module) -> Iterator[str]:
    for found in imports(module):
        if belongs_to(found.names, UNSAFE_IMPORTS):
            yield f"{module.path}:{found.line} imports {found.names[0]}"
    for line, name in calls(module):
        if name in UNSAFE_CALLS:
            yield f"{module.path}:{line} calls {name}()"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield f"{module.path}:{node.value.lineno} allows pickle"


# --- tests --------------------------------------------------------------------------------------


def test_sans_io_code_imports_data_and_maths_only() -> None:
    assert modules("zmqps/core/"), "the rule must not pass because the folder moved"
    assert [text for module in modules(*PURE) for text in pure_violations(module)] == []


def test_each_library_has_one_door() -> None:
    assert [text for module in modules() for text in door_violations(module)] == []


def test_shells_do_not_import_each_other() -> None:
    assert [text for module in modules(*SHELLS) for text in shell_violations(module)] == []


def test_nothing_can_turn_bytes_into_code() -> None:
    assert [text for module in modules() for text in safety_violations(module)] == []


def test_no_module_is_too_long_to_read() -> None:
    assert [f"{module.path}: {module.num_lines} lines" for module in modules() if module.num_lines > MAX_LINES] == []


def test_importing_core_loads_no_io_library() -> None:
    names = [m.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for m in modules("zmqps/core/")]
    program = "import importlib, sys; [importlib.import_module(n) for n in sys.argv[1:]]; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program, *names], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert CORE_LEAVES_OUT.intersection(result.stdout.split()) == set()


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (pure_violations, "zmqps/core/a.py", "import time"),
        (pure_violations, "zmqps/core/a.py", "def f():\n    from asyncio import sleep"),
        (pure_violations, "zmqps/core/a.py", "from .. import worker"),
        (pure_violations, "zmqps/core/consistency/a.py", "from ...net import zeromq"),
        (pure_violations, "zmqps/core/a.py", "import importlib.metadata"),
        (pure_violations, "zmqps/core/a.py", "from typing_extensions import Buffer"),
        (pure_violations, "zmqps/core/a.py", "if TYPE_CHECKING:\n    import asyncio"),
        (pure_violations, "zmqps/core/a.py", "open('x')"),
        (pure_violations, "zmqps/optim/a.py", "noise = np.random.normal()"),
        (door_violations, "zmqps/nodes/server.py", "import zmq.asyncio"),
        (door_violations, "zmqps/optim/kernels.py", "from numba import njit"),
        (shell_violations, "zmqps/nodes/server.py", "from .. import worker"),
        (shell_violations, "zmqps/worker.py", "from zmqps.nodes.server import Server"),
        (safety_violations, "zmqps/nodes/server.py", "def f():\n    import pickle"),
        (safety_violations, "zmqps/nodes/server.py", "eval('1')"),
        (safety_violations, "zmqps/nodes/server.py", "np.load(f, allow_pickle=True)"),
    ],
)
def test_the_rules_see_a_violation(rule, path, source) -> None:  # type: ignore[no-untyped-def]
    assert len(list(rule(parse(path, source)))) == 1


def test_links_in_the_documents_lead_to_files() -> None:
    documents = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("bench/**/*.md"),
    ]
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text())
        if "://" not in target and not target.startswith("mailto:") and not (document.parent / target).exists()
    ]
    assert broken == []


def test_make_targets_named_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (document.name, target)
        for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for code in re.findall(r"```.*?```|`[^`]+`", document.read_text(), re.DOTALL)
        for target in re.findall(r"^`?make ([a-z][a-z-]*)", code, re.MULTILINE)
    }
    assert [f"{document}: make {target}" for document, target in sorted(named) if target not in targets] == []
