"""How an extra is installed: from where this zmqps came."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from tests.imports import ROOT
from tests.pace import allow
from tests.tables import for_each
from zmqps import extras

CLONE = "/home/me/zmq ps"


class Installed:
    """A distribution whose installer has written this down of where it came from."""

    def __init__(self, origin: str | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._origin


def told(monkeypatch: pytest.MonkeyPatch, origin: Any) -> str:
    text = origin if origin is None or isinstance(origin, str) else json.dumps(origin)
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(text))
    return extras.advice("watch")


def test_from_a_clone_it_is_that_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    assert told(monkeypatch, {"url": clone.as_uri(), "dir_info": {}}) == f"pip install '{clone}[watch]'"
    editable = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    assert told(monkeypatch, editable) == f"pip install -e '{clone}[watch]'"
    (clone / "pyproject.toml").unlink()
    assert told(monkeypatch, editable) == "pip install 'zmqps[watch]'", "the clone is gone"


def test_from_a_file_or_a_repository_it_is_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = {"url": "file:///srv/zmqps-0.1.0-py3-none-any.whl", "archive_info": {}}
    assert told(monkeypatch, wheel) == "pip install '/srv/zmqps-0.1.0-py3-none-any.whl[watch]'"
    remote = {"url": "https://example.org/zmqps.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    assert told(monkeypatch, remote) == "pip install 'zmqps[watch] @ git+https://example.org/zmqps.git@c0ffee'"


@for_each("origin", [None, "", "{", "[]", '{"url": 3}', '{"url": "https://example.org/a.whl"}'])
def test_from_an_index_or_nowhere_it_is_the_name(monkeypatch: pytest.MonkeyPatch, origin: str | None) -> None:
    assert told(monkeypatch, origin) == "pip install 'zmqps[watch]'"


def test_where_it_is_not_installed_it_is_the_tree_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Installed:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert shlex.split(extras.advice("watch")) == ["pip", "install", "-e", f"{ROOT}[watch]"]


@pytest.mark.repeats
def test_pip_takes_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(json.dumps({"url": ROOT.as_uri()})))
    _, *arguments = shlex.split(extras.advice("watch"))
    plain = [sys.executable, "-m", "pip", *arguments, "--dry-run", "--no-index", "--no-build-isolation"]
    done = subprocess.run(plain, capture_output=True, text=True, timeout=allow(60))
    assert done.returncode == 0, done.stderr
    assert re.search(r"Would install .*zmqps-|already satisfied: textual", done.stdout)


def test_no_text_of_the_package_names_an_index_that_does_not_have_it() -> None:
    named = re.compile(r"pip install '?zmqps\b")
    found = [
        str(path.relative_to(ROOT))
        for top in ("zmqps", "examples", "docs", "deploy")
        for path in [*ROOT.glob(f"{top}/**/*.py"), *ROOT.glob(f"{top}/**/*.md")]
        if path.name != "extras.py" and named.search(path.read_text())
    ]
    assert [*found, *[name for name in ("README.md",) if named.search((ROOT / name).read_text())]] == []
