"""What --sync-code copies: neither virtual environments nor what git ignores, and it says how much."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zmqps.errors import ConfigurationError
from zmqps.launch.code import Code, code_of, rsync_missing, script_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, a package, an environment, a checkpoint and what Python leaves behind."""
    folder = tmp_path / "project"
    for name, text in {
        "train.py": "pass", "part/__init__.py": "", "part/__pycache__/x.pyc": "x" * 100, "runs/log": "x" * 100,
        "venv/pyvenv.cfg": "home = /usr", "venv/lib/big.so": "x" * 10_000, "deep/env39/pyvenv.cfg": "",
        "deep/env39/bin/python": "", "deep/note.md": "12", "ckpt/step-1/values": "x" * 5_000,
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("deep")
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", folder, "-c", "user.name=me", "-c", "user.email=me@here", *words],
        check=True,
        timeout=30,
        capture_output=True,
    )


def copied(project: Path) -> Code:
    return code_of(project / "train.py", project, "/there")


def test_environments_and_caches_are_left_out_and_the_rest_is_copied(project: Path) -> None:
    code = copied(project)
    expected = {
        "train.py": 4,
        "part/__init__.py": 0,
        "deep/note.md": 2,
        "ckpt/step-1/values": 5000,
        "empty": 0,
        "link": 0,
    }
    assert code.files == expected
    assert set(code.left_out) == {"venv", "deep/env39", "part/__pycache__", "runs"}
    assert code.there == "/there"
    assert code.listing.split(b"\0")[:-1] == sorted(name.encode() for name in expected)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


@needs_git
def test_what_git_ignores_is_left_out_and_what_it_does_not_know_yet_is_copied(project: Path) -> None:
    git(project, "init")
    (project / ".gitignore").write_text("ckpt/\n")
    (project / "old.py").touch()
    git(project, "add", "train.py", "old.py")
    (project / "old.py").unlink()
    code = copied(project)
    assert set(code.files) == {".gitignore", "train.py", "part/__init__.py", "deep/note.md", "link"}
    assert code.nbytes == len("ckpt/\n") + 4 + 2 + 0
    assert code.by_git
    assert "what git ignores" in code.describe(3)


@needs_git
def test_a_repository_within_is_copied_but_for_what_belongs_to_git(project: Path) -> None:
    git(project, "init")
    git(project / "deep", "init")
    assert "deep/note.md" in copied(project).files
    assert not [name for name in copied(project).files if ".git/" in name or "env39" in name]


@needs_git
def test_a_folder_that_git_ignores_as_a_whole_is_copied_all_the_same(project: Path) -> None:
    git(project.parent, "init")
    (project.parent / ".gitignore").write_text("project/\n")
    assert "ckpt/step-1/values" in copied(project).files
    assert not copied(project).by_git


def test_how_much_is_copied_to_how_many_hosts_is_said_and_what_most_of_it_is(project: Path) -> None:
    code = copied(project)
    assert code.describe(2) == (f"6 files, 5.01 kB, of {project} to 2 hosts, without deep/env39/, runs/, venv/")
    assert code.largest().startswith("ckpt/ 5 kB, train.py 4 B, deep/ 2 B")
    assert not code.is_much
    assert Code(folder=project, there="", files={"x": 1_100_000_000}).is_much


def test_what_lies_below_this_directory_lies_below_theirs(project: Path) -> None:
    script = project / "part" / "__init__.py"
    assert code_of(script, project, "/there").there == "/there/part"
    assert code_of(script, project / "deep", "/there").there == str(project / "part")


@pytest.mark.parametrize(
    ("code", "said", "missing"),
    [
        (127, "sh: 1: rsync: not found", "rsync on far"),
        (12, "bash: line 1: rsync: command not found\nrsync error: …", "rsync on far"),
        (12, "zsh:1: command not found: rsync", "rsync on far"),
        (1, "rsync: --mkpath: unknown option", "rsync 3.2.3 or newer on this host"),
        (12, "rsync: on remote machine: --mkpath: unknown option", "rsync 3.2.3 or newer on far"),
        (23, "rsync: change_dir failed: No such file or directory", ""),
    ],
)
def test_an_rsync_that_is_missing_or_too_old_is_told_from_other_failures(code: int, said: str, missing: str) -> None:
    error = rsync_missing(code, said, "far")
    assert (f"there is no {missing}: install" in str(error)) if missing else error is None


@pytest.mark.parametrize(
    "command",
    [["python", "code/train.py"], ["./code/train.py", "-v"], [sys.executable, "-u", "code/train.py", "code.txt"]],
)
def test_the_script_is_the_first_argument_that_is_a_file(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "code.txt").touch()
    assert script_of(command, tmp_path).resolve() == tmp_path / "code" / "train.py"


def test_a_command_without_a_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="names no script"):
        script_of(["python", "-m", "train"], tmp_path)
