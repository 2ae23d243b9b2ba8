"""The units, as systemd itself reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.commands import DEPLOY
from tests.pace import allow

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here"),
]
UNITS = sorted(path.name for path in DEPLOY.glob("systemd/*.service"))
#: Of 10; what systemd calls "medium" begins at 5.
MOST_EXPOSED = 2.5


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units beside a program that exists."""
    for name in UNITS:
        text = (DEPLOY / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/zmqps/bin/zmqps", "/bin/true"))
    return tmp_path


def analyze(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], cwd=directory, capture_output=True, text=True, timeout=allow(30),
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["zmqps-coordinator.service", "zmqps-server@.service"])
def test_systemd_finds_nothing_wrong(installed, name) -> None:
    result = analyze("verify", f"./{name}", directory=installed)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_nor_with_keys_as_credentials(installed) -> None:
    drop_in = installed / "zmqps-coordinator.service.d"
    drop_in.mkdir()
    shutil.copy(DEPLOY / "systemd" / "credentials.conf", drop_in)
    result = analyze("verify", "./zmqps-coordinator.service", directory=installed)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_mistake_in_a_unit_is_seen(installed) -> None:
    unit = installed / "zmqps-coordinator.service"
    unit.write_text(unit.read_text().replace("PrivateTmp=yes", "PrivateTemp=yes"))
    assert "PrivateTemp" in analyze("verify", f"./{unit.name}", directory=installed).stderr


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_shut_in(installed, name) -> None:
    result = analyze("security", "--offline=true", f"./{name}", directory=installed)
    if "unrecognized option" in result.stderr:
        pytest.skip("this systemd-analyze looks at running units only")
    match = re.search(r"Overall exposure level for \S+: ([\d.]+)", result.stdout)
    assert match is not None, result.stdout + result.stderr
    assert float(match[1]) <= MOST_EXPOSED
