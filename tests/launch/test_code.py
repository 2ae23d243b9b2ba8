"""What --sync-code copies: neither virtual environments nor what git ignores, and it says how much."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pace import allow
from tests.tables import for_each
from zmqps import keys
from zmqps.errors import ConfigurationError
from zmqps.launch.code import Code, code_of, rsync_missing, script_of
from zmqps.launch.hosts import Host
from zmqps.launch.ssh import Shell


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


@pytest.fixture
def secretive(project: Path) -> Path:
    """The same with all that is nobody else's business, and with what only looks so."""
    keys.create(project / "keys")
    keys.create(project / "deep" / "cluster")
    for name, text in {
        ".env": "A=1", "conf/.env.local": "A=1", ".ssh/config": "Host a", ".ssh/known_hosts": "a", "id_ed25519": "x",
        "server.KEY": "x", "ca/host.pem": "-----BEGIN RSA PRIVATE KEY-----", "ca/ca.pem": "-----BEGIN CERTIFICATE-----",
        "job-secret.txt": "x" * 32, "hf_token": "x", "credentials.json": "{}", ".netrc": "x", "private.yaml": "x",
        "named/by/option": "x" * 32, "whole/of/it": "x", ".env.example": "A=", "key.py": "x", "tokens.py": "x",
        "tokenizer.json": "{}", "keys.md": "x", "monkey": "x", "odd/node.key.bak": "x", "odd/.env~": "x",
        "odd/job.secret.old": "x", "train.py.bak": "x",
    }.items():  # fmt: skip
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / "private.yaml").chmod(0o600)
    (project / "weights.safetensors").write_bytes(bytes(100_000))
    (project / "weights.safetensors").chmod(0o600)
    return project


SECRETS = {
    "keys/", "deep/cluster/", ".env", "conf/.env.local", ".ssh/", "id_ed25519", "server.KEY", "ca/host.pem",
    "job-secret.txt", "hf_token", "credentials.json", ".netrc", "private.yaml", "named/by/option", "whole/",
    "odd/node.key.bak", "odd/.env~", "odd/job.secret.old",
}  # fmt: skip
NO_SECRETS = {
    "ca/ca.pem", ".env.example", "key.py", "tokens.py", "tokenizer.json", "keys.md", "monkey", "weights.safetensors",
    "train.py", "train.py.bak",
}  # fmt: skip


def without_secrets(folder: Path) -> Code:
    return code_of(folder / "train.py", folder, "/there", [folder / "named/by/option", folder / "whole"])


def test_no_secret_is_copied_whatever_its_name_and_place_and_each_is_named(secretive: Path) -> None:
    code = without_secrets(secretive)
    assert set(code.secrets) == SECRETS
    assert NO_SECRETS <= set(code.files)
    assert not [name for name in code.files if f"{name.partition('/')[0]}/" in SECRETS or name in SECRETS]
    assert "keys/" in code.without()
    assert "\n" not in code.without()


@needs_git
def test_a_secret_that_git_knows_is_not_copied_either_and_one_that_it_ignores_is_not_named(secretive: Path) -> None:
    git(secretive, "init")
    (secretive / ".gitignore").write_text(".env\n")
    git(secretive, "add", "train.py", "keys", "server.KEY")
    code = without_secrets(secretive)
    assert set(code.secrets) == SECRETS - {".env"}
    assert NO_SECRETS <= set(code.files)


def test_where_others_may_not_even_read_the_script_modes_tell_no_secret(secretive: Path) -> None:
    (secretive / "train.py").chmod(0o600)
    assert set(without_secrets(secretive).secrets) == SECRETS - {"private.yaml"}


@pytest.mark.skipif(shutil.which("rsync") is None, reason="there is no rsync")
def test_no_secret_arrives_by_rsync(secretive: Path, tmp_path: Path) -> None:
    code = without_secrets(secretive)
    shell = tmp_path / "ssh"
    shell.write_text('#!/bin/sh\nwhile [ "$1" != far ]; do shift; done; shift; exec sh -c "$*"\n')
    shell.chmod(0o755)
    command = Shell(ssh=str(shell)).copy(Host(name="far"), code.folder, str(tmp_path / "there"))
    subprocess.run(command, input=code.listing, check=True, timeout=allow(60))
    arrived = {path.relative_to(tmp_path / "there").as_posix() for path in (tmp_path / "there").rglob("*")}
    assert NO_SECRETS <= arrived
    assert not {name.rstrip("/") for name in SECRETS} & arrived
    assert not [name for name in arrived if name.endswith((".key", "authorized.toml"))]


def test_what_lies_below_this_directory_lies_below_theirs(project: Path) -> None:
    script = project / "part" / "__init__.py"
    assert code_of(script, project, "/there").there == "/there/part"
    assert code_of(script, project / "deep", "/there").there == str(project / "part")


@for_each(
    "code, said, missing",
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
