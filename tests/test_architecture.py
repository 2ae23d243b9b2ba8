"""The rules of CONTRIBUTING.md that no linter has, read off the source.

What a room imports, and which modules import a library, is in the contracts of pyproject.toml.

The tables come first; to allow something new, change a table and say in the commit why.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.counts import MAX_ATTRIBUTES, attributes, classes, parsed
from tests.flat.bounds import BOUNDED
from tests.imports import ROOT, Module, dotted, imports, is_in, module_graph, modules, nodes, parse
from tests.tables import for_each

pytestmark = pytest.mark.tree

#: Sans-IO code: state machines, equations and encodings. It computes on what it is given and returns what it found.
PURE = (
    *("zmqps/errors/", "zmqps/words.py", "zmqps/checks.py", "zmqps/jit.py", "zmqps/settings/"),
    *("zmqps/core/", "zmqps/optim/", "zmqps/codecs/", "zmqps/deltas/", "zmqps/rows/"),
    # what decides when workers of one host combine their gradients
    *("zmqps/combine/group.py", "zmqps/combine/messages.py", "zmqps/combine/values.py"),
    # what a follower of a table answers, and what asks it
    *("zmqps/follow/asking.py", "zmqps/follow/copies.py", "zmqps/follow/machine.py"),
)

#: All that sans-IO code may import: data, maths and itself. No clock, no chance, no threads, no files, no log. For
#: the libraries, pyproject.toml names the modules that import them.
PURE_MAY_IMPORT = {
    *"__future__ abc array bisect collections contextlib dataclasses difflib enum fnmatch functools hashlib".split(),
    *"heapq hmac inspect ipaddress itertools json math numbers operator reprlib string struct types typing".split(),
    *"msgpack msgspec numba numpy xxhash".split(),
    *(dotted(place.rstrip("/")) for place in PURE),
}
#: … what single files may have beside it,
EXCEPTIONS = {
    "zmqps/core/protocol/wire.py": {"gc"},  # paused while a large header is decoded
    "zmqps/core/coordinator/described.py": {"shlex"},  # a name in a command that is advised
    # what a path is, and in a document an absolute one
    "zmqps/settings/kinds.py": {"os", "pathlib", "re"},
    **{f"zmqps/settings/{name}.py": {"pathlib"} for name in ("node", "server", "coordinator", "cluster", "follower")},
    "zmqps/rows/arena.py": {"mmap", "sys"},  # address space, of which what is written to becomes memory
    "zmqps/codecs/registry.py": {"importlib"},  # a user's codec by its entry point
    "zmqps/optim/registry.py": {"importlib"},  # a user's optimizer, by its entry point
}
#: … and what may stand under `if TYPE_CHECKING:`, for it is never imported.
FOR_TYPING = {"typing_extensions"}

#: Calls that are in no module: input from peers must never become code, and nobody is asked anything.
NEVER_CALLED = {"eval", "exec", "__import__", "input"}

#: What gives a library away where nothing is imported, as text or attribute: it -> the only files that say it.
SAID_ONLY_IN = {
    "cupy": {"zmqps/gpu/device.py"},
    "__cuda_array_interface__": {"zmqps/gpu/handover.py"},
}
#: What opens files by itself, and why; others use `zmqps.files` and `zmqps.folder.Folder`, which look first.
OPENS_ITSELF = {
    "zmqps/files.py": "it is the door",
    "zmqps/folder.py": "files of this user's own, below directories that are held open",
    "zmqps/net/lane/arena.py": "memory of a process, by its descriptor: no name of a file",
    "zmqps/net/lane/private.py": "what the kernel knows of this process's own pages, at an offset",
    "zmqps/net/lane/segment.py": "shared memory, whose owner and mode it checks",
    "zmqps/page/app.py": "a file of the package, wherever that is installed",
    "zmqps/extras.py": "what is installed, by importlib.metadata",
    "zmqps/cli/up.py": "a pipe that it has made",
    "zmqps/checkpoint/owners.py": "a lock, which it opens as a plain file only, and reads up to a bound",
}
#: Methods that open what they are called on, and functions that open what they are given.
OPENING = {"read_text", "write_text", "write_bytes"}
OPENERS = {"io.open", "os.fdopen", "np.load", "np.save", "np.fromfile", "np.memmap", "torch.load", "tempfile.mktemp"}

#: Tests that mirror no module, as `tests/net/test_door.py` mirrors `zmqps/net/door.py`, and why; a folder ends
#: in a slash.
MIRROR_NOTHING = {
    "tests/test_kernel.py": "what of the core is its kernel",
    "tests/test_tables.py": "a tool of the tests",
    "tests/test_standstills.py": "whole clusters whose processes are stopped for a while",
    "tests/test_advice.py": "texts of the whole package, beside the options and commands that there are",
    "tests/test_prose.py": "texts of the whole package, and all documents",
    "tests/test_lazy.py": "what is found by `zmqps.…`, with and without extras and docstrings",
    "tests/test_misspelt.py": "options of everything public",
    "tests/attack/": "end to end: attackers beside honest training on real clusters",
    "tests/durable/": "end to end: nodes that are killed, drained and moved beside honest training",
    "tests/freezes/": "end to end: nodes and workers that are stopped at random beside honest training",
    "tests/fuzz/": "end to end: what a peer may send to any node",
    "tests/lan/": "end to end: clusters on hosts of network namespaces, and what can happen to their wires",
    "tests/mutation/": "the tests of the core: what they notice",
    "tests/simulation/": "end to end: whole clusters on a simulated clock and network, and that the simulator notices",
    "tests/trace/test_experiments.py": "end to end: live clusters in which one thing was made slow, and what is said",
    "tests/trace/test_format.py": "the file that a browser draws, whichever module has written what is in it",
    "tests/test_coordinator_returns.py": "end to end: a coordinator that is killed and started again, in processes",
    "tests/test_bounded_memory.py": "end to end: worker, sockets or lane, and server together",
    "tests/test_checkpoints.py": "end to end: clusters of processes that are saved, killed and restored",
    "tests/test_sparse.py": "end to end: sparse tables on live nodes",
    "tests/test_sparse_copies.py": "end to end: copies of sparse tables on live nodes",
    "tests/test_sparse_durable.py": "end to end: servers with sparse tables that are killed, drained and added",
    "tests/test_sparse_kills.py": "end to end: workers that are killed while they push rows, in processes",
    "tests/test_sparse_checkpoints.py": "end to end: sparse tables that are saved and restored, in processes",
    "tests/test_terms.py": "end to end: norms that are clipped and learning rates that are set, on live nodes",
    "tests/torch/conformance/": "end to end: what PyTorch has, in pairs, with zmqps and without",
    "tests/torch/test_kinds.py": "end to end: what a model, an optimizer and their copies may be",
    "tests/torch/test_others.py": "end to end: loops of Lightning, Accelerate and DistributedDataParallel, unchanged",
    "tests/torch/test_trainers.py": "end to end: the Trainer of Hugging Face, with a subclass of a few lines",
    "tests/test_means.py": "end to end: over whom a mean is, and steps that are left out for all, on live nodes",
    "tests/test_values.py": "end to end: buffers, and values that are set or averaged, on live nodes",
    "tests/test_scale.py": "end to end: jobs that lie on more servers, and on fewer, while they are trained",
    "tests/test_drain.py": "end to end: servers that are drained while jobs are trained",
    "tests/test_identity.py": "end to end: strangers at live nodes",
    "tests/test_inprocess.py": "a double of the tests",
    "tests/test_jobs.py": "end to end: several jobs on one cluster of processes",
    "tests/test_kill_matrix.py": "end to end: workers that die in each phase of a step",
    "tests/test_replicas.py": "end to end: copies of shards over real sockets",
    "tests/test_trust.py": "end to end: clusters with keys, and who is let in",
    "tests/test_fallback.py": "end to end: servers that die where shards have none",
    "tests/test_replicas_lost.py": "end to end: servers that die where shards have backups",
    "tests/test_sync.py": "end to end: synchronous training with real servers",
    "tests/net/test_matrix.py": "end to end: each codec with each optimizer over each transport",
    "tests/client/test_bad_input.py": "the whole room, through the public API",
    "tests/client/test_callbacks.py": "the whole room: what may be called where nothing may wait",
    "tests/client/test_cancel.py": "the whole room: what a cancelled wait leaves behind, awaited or not",
    "tests/client/test_defects.py": "end to end: a machine of any node that breaks down",
    "tests/client/test_close.py": "the whole room: what is open after a close, whoever closed",
    "tests/client/test_dropped.py": "the whole room: what a worker leaves that nobody refers to any more",
    "tests/client/test_odd_arguments.py": "the whole public API: what it takes and refuses",
    "tests/client/test_forks.py": "the whole room: what a forked child has of its parent's worker",
    "tests/codecs/test_convergence.py": "every codec: training comes as far with it",
    "tests/codecs/test_digits.py": "every codec: training comes as far with it",
    "tests/codecs/test_feedback.py": "every codec that keeps what it left out",
    "tests/codecs/test_namespaces.py": "every codec, on a device",
    "tests/codecs/test_own_codec.py": "end to end: a codec of another package, on live nodes",
    "tests/codecs/test_rounding.py": "every codec that rounds",
    "tests/codecs/test_untrusted.py": "every codec: bytes from anybody",
    "tests/core/protocol/test_protocol_document.py": "a document: docs/protocol.md",
    "tests/optim/test_golden.py": "every optimizer",
    "tests/page/test_browser.py": "end to end: the page in a real browser, beside clusters of processes",
    "tests/test_architecture.py": "the source itself",
    "tests/test_documents.py": "the documents",
    "tests/test_supply.py": "what is installed: pyproject.toml and the constraints",
    "tests/test_leaks.py": "the tests: what one may leave behind",
    "tests/test_counts.py": "the source: what is counted of it",
    "tests/test_found.py": "the tests: what random examples have found",
    "tests/test_skips.py": "the tests: what CI may skip",
    "tests/test_pace.py": "the tests: how long they may wait",
    "tests/test_selection.py": "the tests: which are run",
    "tests/test_package.py": "the package's own names",
    "tests/test_readme.py": "README: its scripts and commands",
    "tests/test_installed.py": "what a release holds, and that it works where nothing else is installed",
}
#: Folders of tests that mirror another folder than the package's.
MIRRORED = {"bench", "deploy", "examples", "experiments"}

#: Attributes that say how far something is.
STATES = {"state", "stage", "phase"}
#: A dataclass of so many fields is made by their names only, for nobody knows which comes third,
NAMED_FROM = 5
#: … but for messages, which the decoder makes in the order of their fields, and what is made for each of them.
MADE_IN_ORDER = {
    "zmqps/core/protocol/messages/membership.py",
    "zmqps/core/protocol/messages/jobs.py",
    "zmqps/core/protocol/messages/steps.py",
    "zmqps/core/protocol/messages/training.py",
    "zmqps/core/protocol/messages/moving.py",
    "zmqps/core/protocol/messages/replication.py",
    "zmqps/core/protocol/messages/resizing.py",
    "zmqps/core/protocol/messages/rows.py",
    "zmqps/core/protocol/messages/saving.py",
    "zmqps/core/protocol/messages/tracing.py",
    "zmqps/core/protocol/messages/watching.py",
    "zmqps/core/worker/operations.py",
    "zmqps/core/worker/connections/outbox.py",
}


#: Longer than this and a commit's subject is cut off where commits are listed; older ones than this commit may be.
MAX_SUBJECT, SHORT_AFTER = 72, "66e13cf6de8edf3ac0f4f6f21d12d2eb16596927"


# --- reading the source -------------------------------------------------------------------------


def belongs_to(names: tuple[str, ...], allowed: set[str]) -> bool:
    return any(name == a or name.startswith(f"{a}.") for name in names for a in allowed)


# --- the rules, each a list of "file:line what" --------------------------------------------------


def mirror_violations(test: str, exists: Collection[str]) -> Iterator[str]:
    """A test is named after a module or a room, and perhaps what of it it tests; ``exists``: files and folders."""
    folder, _, file = test.removeprefix("tests/").rpartition("/")
    place = folder if folder.split("/")[0] in MIRRORED else f"zmqps/{folder}".removesuffix("/")
    words = file.removeprefix("test_").removesuffix(".py").split("_")
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    mirrors = names[-1] == place.rpartition("/")[2] or any(
        f"{place}/{path}" in exists for name in names for path in (name, f"{name}.py", f"__{name}__.py")
    )
    listed = is_in(test, MIRROR_NOTHING.keys())
    if not mirrors and not listed:
        yield f"{test}: no module or folder in {place} is named so; move it, or say in MIRROR_NOTHING why it has none"
    if mirrors and listed and test in MIRROR_NOTHING:
        yield f"{test} is in MIRROR_NOTHING and mirrors something"


def pure_violations(module: Module) -> Iterator[str]:
    allowed = PURE_MAY_IMPORT.union(*(extra for place, extra in EXCEPTIONS.items() if is_in(module.path, (place,))))
    for found in imports(module):
        if not belongs_to(found.names, allowed | FOR_TYPING if found.happens == "never" else allowed):
            yield f"{module.path}:{found.line} imports {found.names[-1]}"


def said_violations(module: Module) -> Iterator[str]:
    for node in nodes(module):
        said = getattr(node, "attr", None) or getattr(node, "value", None)
        if isinstance(said, str) and module.path not in SAID_ONLY_IN.get(said, {module.path}):
            yield f"{module.path}:{node.lineno} says {said}, which is for {', '.join(SAID_ONLY_IN[said])}"


def safety_violations(module: Module) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NEVER_CALLED:
            yield f"{module.path}:{node.lineno} calls {node.func.id}()"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield f"{module.path}:{node.value.lineno} allows pickle"


def opening_violations(module: Module) -> Iterator[str]:
    """A file that others may have made is opened by what looks first: it may be a FIFO, a device or endless."""
    if module.path in OPENS_ITSELF:
        return
    for node in nodes(module):
        if not isinstance(node, ast.Call):
            continue
        name, first = ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else ""
        method, told = name.rpartition(".")[2], ast.unparse(node)
        opened = bool(node.args) and isinstance(node.args[0], ast.Call)  # which is looked at by itself
        if (
            (name == "open" and not (opened or first in ("fd", "os.devnull") or "opener=" in told))
            or (name == "os.open" and first != "os.devnull" and "O_DIRECTORY" not in told)
            or (method == "open" and name != "open" and isinstance(node.func, ast.Attribute) and first[1:2] in "rwxa"
                and isinstance(node.args[0] if node.args else None, ast.Constant))
            or (method == "read_bytes" and not node.args)
            or method in OPENING
            or name in OPENERS
        ):  # fmt: skip
            yield f"{module.path}:{node.lineno} calls {told[:80]}; use zmqps.files"


def raising_violations(module: Module) -> Iterator[str]:
    """An error that is kept must not be raised itself: it would keep whatever was at hand each time."""
    for node in nodes(module):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Attribute | ast.Subscript):
            yield f"{module.path}:{node.lineno} raises {ast.unparse(node.exc)}, which others may hold: add .again()"


def naming_violations(module: Module) -> Iterator[str]:
    for node in nodes(module):
        if not isinstance(node, ast.ClassDef) or module.path in MADE_IN_ORDER:
            continue
        made = [ast.unparse(d) for d in node.decorator_list if ast.unparse(d).startswith("dataclass")]
        annotations = [ast.unparse(s.annotation) for s in node.body if isinstance(s, ast.AnnAssign)]
        fields = [text for text in annotations if not text.startswith("ClassVar")]
        if made and len(fields) >= NAMED_FROM and "KW_ONLY" not in fields and "kw_only=True" not in made[0]:
            yield f"{module.path}:{node.lineno} {node.name} has {len(fields)} fields and is not keyword-only"


def state_violations(module: Module) -> Iterator[str]:
    """A state of the core is a member of an enum, which lists all that there are and which mypy checks."""
    for node in nodes(module) if is_in(module.path, ("zmqps/core/",)) else ():
        match node:
            case ast.Compare(left=ast.Attribute(attr=name), comparators=[ast.Constant(value=str() | int() as value)]):
                pass
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Constant(value=str() | int() as value)):
                pass
            case _:
                continue
        if name in STATES:
            yield f"{module.path}:{node.lineno} has {value!r} for a {name}; use a member of an enum"


# --- tests --------------------------------------------------------------------------------------


def test_no_circle_between_modules() -> None:
    TopologicalSorter(module_graph()).prepare()  # raises CycleError


def test_tests_mirror_what_they_test() -> None:
    tests = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("tests/**/test_*.py"))]
    places = [place for top in ("zmqps", *MIRRORED) for place in ROOT.glob(f"{top}/**/*")]
    exists = {place.relative_to(ROOT).as_posix() for place in places}
    assert [text for test in tests for text in mirror_violations(test, exists)] == []
    assert [place for place in MIRROR_NOTHING if not (ROOT / place).exists()] == []


def test_sans_io_code_imports_data_and_maths_only() -> None:
    assert modules("zmqps/core/"), "the rule must not pass because the folder moved"
    assert [text for module in modules(*PURE) for text in pure_violations(module)] == []


def test_what_gives_a_library_away_is_said_in_its_door_only() -> None:
    assert [text for module in modules() for text in said_violations(module)] == []


def test_nothing_can_turn_bytes_into_code() -> None:
    assert [text for module in modules() for text in safety_violations(module)] == []


def test_files_that_others_may_have_made_are_opened_by_what_looks_first() -> None:
    assert [text for module in modules() for text in opening_violations(module)] == []
    assert [path for path in OPENS_ITSELF if not (ROOT / path).exists()] == []


def test_errors_that_are_kept_are_not_raised_themselves() -> None:
    assert [text for module in modules() for text in raising_violations(module)] == []


def test_dataclasses_of_many_fields_are_keyword_only() -> None:
    paths = [path for folder in ("bench", "experiments") for path in sorted(ROOT.glob(f"{folder}/**/*.py"))]
    found = [*modules(), *(parse(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths)]
    assert [text for module in found for text in naming_violations(module)] == []


def test_states_of_the_core_are_members_of_enums() -> None:
    assert [text for module in modules() for text in state_violations(module)] == []


@for_each(
    "rule, path, source",
    [
        (pure_violations, "zmqps/core/a.py", "import time"),
        (pure_violations, "zmqps/core/a.py", "def f():\n    from asyncio import sleep"),
        (pure_violations, "zmqps/core/a.py", "from .. import worker"),
        (pure_violations, "zmqps/core/consistency/a.py", "from ...net import zeromq"),
        (pure_violations, "zmqps/core/a.py", "import importlib.metadata"),
        (pure_violations, "zmqps/core/a.py", "import zmq"),
        (pure_violations, "zmqps/core/a.py", "from typing_extensions import Buffer"),
        (pure_violations, "zmqps/core/a.py", "if TYPE_CHECKING:\n    import asyncio"),
        (said_violations, "zmqps/gpu/handover.py", "cupy = sys.modules['cupy']"),
        (said_violations, "zmqps/gpu/handover.py", "runtime = device.cupy.cuda.runtime"),
        (said_violations, "zmqps/gpu/staging.py", "value.__cuda_array_interface__['data']"),
        (naming_violations, "bench/a.py", "@dataclass\nclass A:\n" + "".join(f" {name}: int\n" for name in "abcde")),
        (safety_violations, "zmqps/nodes/server.py", "eval('1')"),
        *(
            (opening_violations, "zmqps/nodes/a.py", source)
            for source in (
                "open(path)",
                "open(path, 'rb', buffering=0)",
                "open(os.open(path, os.O_RDONLY))",
                "path.open('rb')",
                "os.open(path, os.O_RDONLY)",
                "path.read_text()",
                "path.read_bytes()",
                "path.write_text('x')",
                "np.load(path)",
                "open(f'{path}.json', 'w')",
            )
        ),
        (raising_violations, "zmqps/core/a.py", "raise self.lost"),
        (state_violations, "zmqps/core/a.py", "self.stage = 'opened'"),
        (state_violations, "zmqps/core/a.py", "if making.stage != 2:\n    pass"),
        (raising_violations, "zmqps/core/a.py", "raise self._barred[peer][1] from None"),
        (safety_violations, "zmqps/nodes/server.py", "np.load(f, allow_pickle=True)"),
    ],
)
def test_the_rules_see_a_violation(rule, path, source) -> None:  # type: ignore[no-untyped-def]
    assert len(list(rule(parse(path, source)))) == 1


@for_each(
    "test, violations",
    [
        ("tests/net/system/test_addresses.py", 0),
        ("tests/net/system/test_addresses_taken.py", 0),
        ("tests/net/test_net.py", 0),
        ("tests/net/test_lane.py", 0),
        ("tests/bench/test_main.py", 0),
        ("tests/fuzz/test_anything.py", 0),
        ("tests/net/test_address.py", 1),
        ("tests/test_addresses.py", 1),
        ("tests/net/lane/test_addresses.py", 1),
    ],
)
def test_a_test_that_mirrors_nothing_is_seen(test: str, violations: int) -> None:
    exists = {"zmqps/net", "zmqps/net/system", "zmqps/net/system/addresses.py", "zmqps/net/lane", "bench/__main__.py"}
    assert len(list(mirror_violations(test, exists))) == violations


def test_what_the_soak_takes_for_bounded_is_there() -> None:
    found = {
        f"{'errors' if '/errors/' in module.path else Path(module.path).stem}.{node.name}"
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    }
    assert {".".join(name.split(".")[:2]) for name in BOUNDED} <= found


def git(*arguments: str) -> str | None:
    """Return what git says of this repository; None: it is none, or git is not there, or does not know."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def test_subjects_of_commits_are_short() -> None:
    subjects = git("log", "--no-merges", "--format=%s", f"{SHORT_AFTER}..HEAD")
    if subjects is None:
        pytest.skip("no history back to the first commit that is checked")
    assert [subject for subject in subjects.splitlines() if len(subject) > MAX_SUBJECT] == []


#: Classes of the core with more than `MAX_ATTRIBUTES` attributes, and why.
MANY_ATTRIBUTES = {
    "CoordinatorKernel": "it puts the coordinator's parts together: one attribute a part",
    "JobKernel": "it puts the parts of one job together",
    "JobSpec": "what can be said of a job; it travels as it is",
    "Hello": "what a node says of itself; it travels as it is",
    "Statistics": "what a worker's user may read, by its names in metrics and documents",
}


def test_classes_of_the_core_have_few_attributes() -> None:
    many = {node.name for _, node in classes(parsed(ROOT, "zmqps/core")) if len(attributes(node)) > MAX_ATTRIBUTES}
    assert many == set(MANY_ATTRIBUTES), "group what belongs together, or say here why it cannot be"
    assert len(MANY_ATTRIBUTES) <= 5
