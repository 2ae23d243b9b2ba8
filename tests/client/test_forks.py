"""A forked child has a copy of its parent's worker, and none of what is behind it: it is told so, whatever it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inprocess import InProcessCluster
from tests.pace import allow, stretch

PATIENCE = allow(60.0)
PROGRAM = Path(__file__).with_name("forks.py")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "ending"), [("fork", "sys.exit"), ("fork", "_exit"), ("fork", "collected"), ("multiprocessing", "return")]
)
def test_a_forked_child_gets_an_error_at_once_and_its_parent_goes_on(how: str, ending: str) -> None:
    with InProcessCluster() as cluster:
        command = [sys.executable, "-m", "tests.client.forks", cluster.address, how, ending]
        env = {**os.environ, "PYTHONASYNCIODEBUG": ""}  # which tells stderr about each slow step
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, cwd=PROGRAM.parents[2], env=env
        )
        assert ended.returncode == 0, ended.stderr
        facts = json.loads(ended.stdout)
        assert set(facts["outcomes"].values()) == {"ForkedError"}, facts["outcomes"]
        assert facts["code"] == 0, ended.stderr
        assert facts["took"] < stretch(15)
        assert facts["names"] == ["awaited", "parent"], "the child left in its parent's name"
        assert (facts["value"], facts["kept"]) == (-3.0, -1.0)
        assert ended.stderr == ""
