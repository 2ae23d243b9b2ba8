"""What is installed is what was tested: every dependency has one version with its hashes, every release its checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.imports import ROOT
from tests.pace import allow
from tests.tables import for_each
from zmqps import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FILES = ("constraints.txt", "constraints-tools.txt", "constraints-docs.txt")
#: Extras that `make install` installs; the others need a GPU or are large.
INSTALLED = ("demo", "bench", "watch", "tensorboard", "dev")
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
#: Where the API is known to move; pyproject.toml says how.
BOUNDED = {"click", "msgpack", "msgspec", "numba", "numpy", "psutil", "pyzmq", "hatchling", "xxhash"} | {
    "starlette",
    "textual",
    "uvicorn",
}


@cache
def pins(file: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Return by name what a file pins, and the hashes of it."""
    text = (ROOT / file).read_text()
    entries = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found = {}
    for entry in entries:
        pin, *hashes = re.split(r"\s+--hash=", entry.strip())
        requirement = Requirement(pin)
        found[canonicalize_name(requirement.name)] = (requirement, hashes)
    return found


def asked_for() -> Iterator[Requirement]:
    """Yield what `make install` installs and what the package is built with."""
    project = PROJECT["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in INSTALLED)]
    for text in [*chain.from_iterable(lists), *PROJECT["build-system"]["requires"]]:
        if not text.startswith("zmqps["):
            yield Requirement(text)


def unmet(requirement: Requirement, file: str) -> str | None:
    pin = pins(file).get(canonicalize_name(requirement.name))
    if pin is None:
        return f"{requirement} is not in {file}"
    [version] = pin[0].specifier
    return None if requirement.specifier.contains(version.version) else f"{requirement} is {pin[0]} in {file}"


@for_each("file", FILES)
def test_every_pin_is_one_version_with_hashes_and_no_place(file: str) -> None:
    assert len(pins(file)) > 20
    for requirement, hashes in pins(file).values():
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", item) for item in hashes), requirement
    text = (ROOT / file).read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    assert [text for requirement in asked_for() if (text := unmet(requirement, "constraints.txt"))] == []
    for group, texts in PROJECT["dependency-groups"].items():
        asked = [Requirement(text) for text in texts]
        assert [text for requirement in asked if (text := unmet(requirement, f"constraints-{group}.txt"))] == []


@for_each("python", SUPPORTED)
def test_so_is_what_they_need_in_turn(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    missing = []
    for name, (pin, _) in pins("constraints.txt").items():
        if pin.marker is not None and not pin.marker.evaluate(environment):
            continue
        try:
            needed = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:  # the build's own, where the package came as a wheel
            continue
        missing += [
            f"{name} needs {text}"
            for requirement in needed
            if requirement.marker is None or requirement.marker.evaluate(environment)
            if (text := unmet(requirement, "constraints.txt"))
        ]
    assert missing == []


def test_what_is_known_to_move_is_bounded_above() -> None:
    bounded = {
        canonicalize_name(requirement.name)
        for requirement in asked_for()
        if any(bound.operator == "<" for bound in requirement.specifier)
    }
    assert bounded == BOUNDED


def test_make_installs_nothing_without_its_hash() -> None:
    recipes = re.findall(r"^\t.*-m pip install (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(recipes) == 9
    unchecked = [recipe for recipe in recipes if "--require-hashes" not in recipe and "--no-index" not in recipe]
    assert [recipe.partition(" ||")[0] for recipe in unchecked] == [
        "--quiet --requirement bench/peers/requirements.txt",  # for comparisons by hand
        '--quiet "$$peer"',  # the same one by one, where not all of them install
        "--quiet --no-compile --requirement tests/frameworks.txt",  # PyTorch has other wheels on other indexes
    ], "each of them in a virtualenv of its own, which holds nothing that is shipped"


# --- the audit: what it says, with a double of pip-audit ----------------------------------------

DOUBLE = """#!{python}
import json, sys
report, kind = sys.argv[sys.argv.index("--output") + 1], {kind!r}
failures = {{
    "unreachable": "ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed",
    "no proxy": "Traceback (most recent call last):\\nrequests.exceptions.ProxyError: no route to the database",
    "a crash": "Traceback (most recent call last):\\nKeyError: 'connection'",
    "a bad option": "pip-audit: error: unrecognized arguments: --connection",
}}
if kind in failures:
    sys.exit(failures[kind])
open(report, "w").write(json.dumps({{"dependencies": ["CVE-0"] if kind == "found" else []}}))
sys.exit(kind == "found")
"""


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("clean", 0, "audit: no known vulnerability in constraints.txt"),
        ("found", 1, json.dumps({"dependencies": ["CVE-0"]})),
        (
            "unreachable",
            0,
            "audit: skipped for constraints.txt, no vulnerability database can be reached: ERROR:pip_audit",
        ),
        ("no proxy", 0, "no vulnerability database can be reached: requests.exceptions.ProxyError: no route"),
        ("a crash", 1, "audit: failed for constraints.txt, with exit code 1"),
        ("a bad option", 1, "unrecognized arguments"),
    ],
)
def test_an_audit_fails_for_what_it_finds_and_not_for_what_it_cannot_ask(
    kind: str, code: int, said: str, tmp_path: Path
) -> None:
    double = tmp_path / "pip-audit"
    double.write_text(DOUBLE.format(python=sys.executable, kind=kind))
    double.chmod(0o755)
    command = [".ci/audit", str(double), "constraints.txt"]
    result = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=allow(30))
    assert result.returncode == code, result.stderr
    assert said in result.stdout


# --- a release: what is in its way, in a repository that has only what is looked at -------------------------


@pytest.fixture
def releasable(tmp_path: Path) -> Path:
    """Return a repository whose only commit can be released as 0.3.0."""
    for name, text in {
        ".ci/release": (ROOT / ".ci/release").read_text(),
        ".gitignore": "runs/\n",
        "zmqps/__init__.py": '__version__ = "0.3.0"\n',
        "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-12-24\n\n- One thing.\n",
        "README.md": "Version 0.3.0 is an alpha.\n",
        "deploy/cluster.yaml": "image: zmqps-example:0.3.0  # yours\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *named, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=allow(30)).stdout.strip()


def commit(folder: Path) -> None:
    """Commit everything, and let the commit have passed CI."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Do one thing")
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs/ci-passed").write_text(git(folder, "rev-parse", "HEAD") + "\n")


def in_the_way(folder: Path, version: str = "0.3.0") -> list[str]:
    """Return what keeps a version from being released."""
    command = ["bash", ".ci/release", version]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=allow(30), check=False)
    said = [line.removeprefix("release: ") for line in done.stderr.splitlines()]
    assert bool(said) == bool(done.returncode), done
    assert bool(said) != bool(re.fullmatch(r"release: \w+ can be [\w.]+\n", done.stdout)), done
    return said


def test_a_commit_that_has_all_can_be_released(releasable: Path) -> None:
    assert in_the_way(releasable) == []


@for_each("version", ["", "v0.3.0", "0.3", "0.3.0.dev0", "0.3.0 -f"])
def test_a_release_has_a_plain_number(version: str, releasable: Path) -> None:
    assert in_the_way(releasable, version) == [f"'{version}' is no version: make release VERSION=0.1.0"]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("zmqps/__init__.py", "0.3.0", "0.3.0.dev0", 'zmqps/__init__.py must say __version__ = "0.3.0"'),
        ("CHANGELOG.md", " - 2026-12-24", "", "CHANGELOG.md needs a head with the date: ## [0.3.0] - 2"),
        ("CHANGELOG.md", "## [0.3.0]", "- More.\n\n## [0.3.0]", "move the lines under [Unreleased] in CHANGELOG.md"),
        ("README.md", "0.3.0", "0.3.1", "the places above name another version than 0.3.0"),
        ("deploy/cluster.yaml", "0.3.0", "0.3.0rc1", "the places above name another version than 0.3.0"),
    ],
)
def test_a_release_is_named_everywhere(file: str, old: str, new: str, said: str, releasable: Path) -> None:
    path = releasable / file
    path.write_text(path.read_text().replace(old, new))
    commit(releasable)
    assert in_the_way(releasable)[-1].startswith(said)


def test_a_release_is_a_clean_commit_that_has_passed_ci_and_is_tagged_once(releasable: Path) -> None:
    (releasable / "left").touch()
    assert in_the_way(releasable) == ["commit or remove what `git status` lists"]
    git(releasable, "add", "--all")
    git(releasable, "commit", "--quiet", "--message", "Do more")
    assert in_the_way(releasable) == ["this commit has not passed CI: run .ci/run, which writes runs/ci-passed"]
    commit_ = git(releasable, "rev-parse", "HEAD")
    (releasable / "runs/ci-passed").write_text(f"{commit_}\n")
    git(releasable, "tag", "--annotate", "v0.3.0", "--message", "zmqps 0.3.0")
    assert in_the_way(releasable) == ["v0.3.0 is tagged already: take the next number"]


def test_what_follows_a_release_has_another_version() -> None:
    count = ["git", "rev-list", "--count", f"v{__version__}..HEAD"]
    result = subprocess.run(count, cwd=ROOT, capture_output=True, text=True, timeout=allow(30), check=False)
    since = int(result.stdout) if result.returncode == 0 else 0  # there is no such tag, or no repository
    assert since == 0, f"{__version__} is tagged: set the next version with .dev0 in zmqps/__init__.py"
