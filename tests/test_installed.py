"""What a release is: an sdist and a wheel that hold what they must, and work in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.imports import ROOT
from tests.pace import allow
from zmqps import __version__

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]  # an empty environment takes its packages from an index

#: Minor versions of CPython that are looked for; a test is skipped where its version cannot be had (`.ci/install`).
MINORS = (11, 12, 13, 14)
#: One step of training: a coordinator, a server and a worker.
STEP = """
import numpy as np, zmqps

if __name__ == "__main__":
    with zmqps.LocalCluster(servers=1, workers=1) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({"w": np.zeros(4, np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=1.0), mode="sync")
        worker.push({"w": np.ones(4, np.float32)})
        print(worker.pull()["w"].tolist(), zmqps.__file__)
        worker.finish()
"""


def run(*command: object, cwd: Path, timeout: float = 150.0) -> str:
    """Run a command that knows nothing of this tree."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ZMQPS_", "VIRTUAL"))}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=allow(timeout),
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@cache
def python(minor: int) -> str | None:
    """Return a CPython of that version, if one is at hand."""
    name = f"python3.{minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    what = "(sys.implementation.name, *sys.version_info[:2])"
    code = f"import sys, venv; assert {what} == ('cpython', 3, {minor})"
    for path in [shutil.which(name), *sorted(pyenv.glob(f"versions/3.{minor}.*/bin/{name}"), reverse=True)]:
        if path and not subprocess.run([path, "-c", code], capture_output=True, timeout=30).returncode:
            return str(path)
    return None


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where an sdist and the wheel are: in `DIST`, or where `make package` puts them."""
    if given := os.environ.get("DIST"):  # the files that `make release` has built, and nothing like them
        return ROOT / given
    folder = tmp_path_factory.mktemp("dist")
    run("make", "package", "VENV=", f"PYTHON={sys.executable}", f"DIST={folder}", cwd=ROOT)
    return folder


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "zmqps"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def test_the_wheel_holds_the_package_its_licences_and_nothing_else(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    assert wheel.name == f"zmqps-{__version__}-py3-none-any.whl"
    info = f"zmqps-{__version__}.dist-info/"
    held = set(zipfile.ZipFile(wheel).namelist())
    about = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    about.add("licenses/zmqps/page/static/uplot/LICENSE")
    assert held == tracked() | {info + name for name in about}
    assert {"zmqps/py.typed", "zmqps/page/static/page.html", "zmqps/page/static/uplot/uPlot.iife.min.js"} <= held


def test_the_sdist_holds_what_the_wheel_is_built_from(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    assert sdist.name == f"zmqps-{__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    beside = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert held == tracked() | beside


def test_the_metadata_name_the_licences_the_pythons_and_the_system(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    text = zipfile.ZipFile(wheel).read(f"zmqps-{__version__}.dist-info/METADATA").decode()
    head = text.partition("\n\n")[0].splitlines()
    assert "License-Expression: Apache-2.0 AND MIT" in head
    assert "Requires-Python: >=3.11" in head
    assert "Classifier: Operating System :: POSIX :: Linux" in head
    assert [line for line in head if re.match(r"Requires-Dist: [\w-]+\s*$", line)] == [], "each has a lower bound"


def installed(folder: Path, minor: int, what: Path) -> Path:
    """Install a file into an empty environment; return the environment's commands."""
    found = python(minor)
    if found is None:
        pytest.skip(f"no python3.{minor} is at hand")
    run(found, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    bin = folder / "env" / "bin"
    run(*pip(bin), "install", "--quiet", what, cwd=folder)
    return bin


def pip(bin: Path) -> tuple[object, ...]:
    """Return how the pip here is called for another environment; the CPython of `.ci/python` has none."""
    return sys.executable, "-m", "pip", "--python", bin / "python"


def works(bin: Path, folder: Path) -> Iterator[str]:
    """Yield what differs from a zmqps that works."""
    if (said := run(bin / "zmqps", "--version", cwd=folder)) != f"zmqps {__version__}\n":
        yield said
    if "\nRun:\n" not in (said := run(bin / "zmqps", "--help", cwd=folder)):
        yield said
    (folder / "step.py").write_text(STEP)
    if not (said := run(bin / "python", "step.py", cwd=folder)).startswith(f"[-1.0, -1.0, -1.0, -1.0] {folder}/env/"):
        yield said
    run(*pip(bin), "check", cwd=folder)


@pytest.mark.parametrize("minor", MINORS)
def test_the_wheel_works_in_an_empty_environment(minor: int, dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("*.whl")
    assert list(works(installed(tmp_path, minor, wheel), tmp_path)) == []


def test_so_does_the_sdist(dist: Path, tmp_path: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    assert list(works(installed(tmp_path, MINORS[0], sdist), tmp_path)) == []


def test_what_the_image_installs_works(tmp_path: Path) -> None:
    """Follow the Dockerfile in a folder, up to the stage that needs root, and the wheel works as in its image."""
    build, opt = tmp_path / "build", tmp_path / "env"
    build.mkdir()
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy/docker/Dockerfile").read_text(), flags=re.MULTILINE)
    steps = text.replace("\\\n", " ").partition(" AS base\n")[0].splitlines()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for name, rest in (step.split(None, 1) for step in steps if step.strip()):
        if name == "COPY":
            *sources, target = rest.split()
            for source in (ROOT / source for source in sources):
                if source.is_dir():
                    shutil.copytree(source, build / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, build / target)
        elif name == "RUN":
            run("env", f"PATH={path}", "sh", "-euc", rest.replace("/opt/zmqps", str(opt)), cwd=build)
    assert list(works(opt / "bin", tmp_path)) == []
    assert not list(opt.glob("bin/pip*")), "an image needs no pip"
