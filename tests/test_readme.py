"""README, tutorial and notebook do what they say: their scripts run, their commands are understood."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.imports import ROOT
from tests.pace import allow
from tests.ports import free_port
from tests.tables import for_each
from zmqps.cli.main import cli

README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
NOTEBOOK = json.loads((ROOT / "examples/local_cluster.ipynb").read_text())
#: What opens each sign of a diff, in the script before and after.
BEFORE, AFTER = " -", " +"


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def script(signs: str, text: str = README) -> str:
    [diff] = blocks("diff", text)
    return "".join(line[1:] + "\n" for line in diff.splitlines() if line[:1] in signs or not line)


def run(*command: str, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ZMQPS_")}
    env["PYTHONPATH"] = str(ROOT)
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=allow(150))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_six_lines_are_added_to_the_pytorch_script() -> None:
    [diff] = blocks("diff")
    assert len(re.findall(r"^\+", diff, re.MULTILINE)) == 6
    compile(script(BEFORE), "before", "exec")


@pytest.mark.timeout(180)  # two processes import PyTorch, on a machine that may do other things
@pytest.mark.parametrize("workers", [0, 2], ids=["alone", "with zmqps"])
def test_the_pytorch_script_learns(workers: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "train.py").write_text(script(AFTER if workers else BEFORE))
    up = ("-m", "zmqps", "up", "--servers", "2", "--workers", str(workers), "--address", "tcp://127.0.0.1:0", "--")
    run(sys.executable, *(up if workers else ()), *(("python",) if workers else ()), "train.py", cwd=tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    x = torch.randn(1000, 64, generator=torch.Generator().manual_seed(1))
    assert (model(x).argmax(dim=1) == x[:, :10].argmax(dim=1)).float().mean() > 0.7


@pytest.mark.processes
def test_the_loop_in_plain_python_runs(tmp_path: Path) -> None:
    [loop] = blocks("python")
    (tmp_path / "loop.py").write_text(loop)
    assert "staleness" in run(sys.executable, "loop.py", cwd=tmp_path)


def test_the_tutorial_adds_zmqps_to_its_first_script() -> None:
    first, of_ray = blocks("python", TUTORIAL)
    assert script(BEFORE, TUTORIAL) == first
    compile(of_ray, "ray", "exec")


#: Commands of the tutorial that show what they print, by the script that they run.
SHOWN = re.findall(r"^```sh\n([^`]*)```\n\n```\n([^`]*)```$", TUTORIAL, re.MULTILINE)


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("typed", "printed"), SHOWN, ids=["alone", "up", "launch", "run"])
def test_the_commands_of_the_tutorial_print_what_it_shows(typed: str, printed: str, tmp_path: Path) -> None:
    signs = AFTER if "zmqps" in typed else BEFORE
    (tmp_path / "train.py").write_text(script(signs, TUTORIAL))
    typed = typed.replace("zmqps up", "zmqps up --address tcp://127.0.0.1:0").replace(":5570", f":{free_port()}")
    said = re.sub(r"\d{4}-\d\d-\d\d [\d:.]+ ", "", run("bash", "-ec", typed, cwd=tmp_path))  # without the times
    assert [line for line in printed.splitlines() if not re.search(f"{re.escape(line)}$", said, re.MULTILINE)] == []


@pytest.mark.processes
def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n".join("".join(cell["source"]) for cell in cells))
    shown = "".join(line for cell in cells for output in cell["outputs"] for line in output["text"])
    assert run(sys.executable, "cells.py", cwd=tmp_path) == shown


def commands() -> Iterator[str]:
    for block in [*blocks("sh"), *blocks("sh", TUTORIAL)]:
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if "zmqps" in words:
                yield shlex.join(words[words.index("zmqps") :])


@for_each("command", sorted(set(commands())))
def test_the_commands_are_understood(command: str) -> None:
    _, *rest = shlex.split(command)
    found: click.Command = cli
    while isinstance(found, click.Group) and rest and rest[0] in found.commands:
        found = found.commands[rest.pop(0)]
    assert found is not cli
    found.make_context(command, rest)  # raises where an option is unknown


def test_lines_end_at_120_characters() -> None:
    outside = re.sub(r"^(\||  <img).*$", "", README + TUTORIAL, flags=re.MULTILINE)
    assert [line for line in outside.splitlines() if len(line) > 120] == []
