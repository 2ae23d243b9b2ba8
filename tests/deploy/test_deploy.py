"""What the files in deploy/ run exists: commands, options and their values, ports that agree."""

from __future__ import annotations

import re

from tests.deploy.commands import DEPLOY, exec_start, lists, parse, settings, zmqps_arguments
from tests.imports import ROOT
from tests.tables import for_each
from zmqps.cli.main import cli

MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
COMPOSE = DEPLOY / "docker" / "compose.yaml"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
#: What each file must run at least; so that a file in another form is not passed by.
RUNS = {
    "cluster.yaml": {"coordinator", "server", "status"},
    "job.yaml": {"run"},
    "jobset.yaml": {"coordinator", "server", "status"},
    "compose.yaml": {"coordinator", "server", "status"},
}


def commands(path) -> list[list[str]]:
    return [found for words in lists(path) if (found := zmqps_arguments(words)) is not None]


@for_each("path", [*MANIFESTS, COMPOSE])
def test_commands_and_options_of_manifests_exist(path) -> None:
    found = commands(path)
    assert {words[0] for words in found} == RUNS[path.name]
    for words in found:
        parse(words)


@for_each("path", UNITS)
def test_commands_and_options_of_units_exist(path) -> None:
    program, *words = exec_start(path)
    assert program == "/opt/zmqps/bin/zmqps"
    parse(words)


def test_variables_of_the_environment_file_are_options() -> None:
    known = {"ZMQPS_KEYS", "ZMQPS_LOG_LEVEL"}
    for name in ("coordinator", "server"):
        known |= {f"ZMQPS_{name.upper()}_{option.name.upper()}" for option in cli.commands[name].params}
    text = (DEPLOY / "systemd" / "environment").read_text()
    found = set(re.findall(r"^(?:# )?(ZMQPS_\w+)=", text, re.MULTILINE))
    assert found - known == set()


@for_each("path", [*MANIFESTS, COMPOSE])
def test_everybody_goes_where_the_coordinator_listens(path) -> None:
    text = path.read_text()
    assert set(re.findall(r"tcp://[^\s\"]+:(\d+)", text)) <= {"5570"}
    nodes = {words[0]: parse(words) for words in commands(path)}
    if "server" in nodes:
        assert nodes["coordinator"]["address"] == "tcp://0.0.0.0:5570"
        assert nodes["server"]["ports"] == "5571"
        assert nodes["status"]["coordinator"] == "tcp://127.0.0.1:5570"
        assert nodes["server"]["keys"] == nodes["coordinator"]["keys"] == nodes["status"]["keys"]


def test_units_leave_out_what_would_break_numba_and_memory_figures() -> None:
    for path in UNITS:
        keys = settings(path)
        assert "MemoryDenyWriteExecute" not in keys
        assert "ProcSubset" not in keys, "hides /proc/meminfo"
        assert keys["SuccessExitStatus"] == ["143"]


def test_every_folder_says_how_it_is_used() -> None:
    folders = {path.name for path in DEPLOY.iterdir() if path.is_dir()}
    text = (DEPLOY / "README.md").read_text()
    assert [name for name in sorted(folders) if not (DEPLOY / name / "README.md").is_file()] == []
    assert [name for name in sorted(folders) if f"{name}/" not in text] == []
    assert (ROOT / "deploy" / "cluster.toml").is_file()
