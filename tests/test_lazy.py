"""What `zmqps` has is found by its name, in `dir`, and with a sentence where an extra is missing."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import zmqps
from tests.pace import allow
from zmqps.extras import advice

MODULES = ("aio", "data", "jax", "keras", "keys", "local", "optim", "pipeline", "ray", "stale", "torch")


def run(code: str, *flags: str) -> str:
    result = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=allow(60))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_all_modules_are_shown() -> None:
    assert set(MODULES) <= set(dir(zmqps))
    assert set(zmqps.__all__) <= set(dir(zmqps))


def test_ray_is_there_without_being_imported() -> None:
    assert run("import zmqps; print(zmqps.ray.RayCluster.__name__)") == "RayCluster\n"


def test_a_module_whose_extra_is_missing_says_what_to_install() -> None:
    extras = ("torch", "jax", "keras")
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {extras}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import zmqps
for extra in {extras}:
    assert not hasattr(zmqps, extra)
    for attempt in (f"zmqps.{{extra}}", f"__import__('zmqps.{{extra}}')"):
        try:
            eval(attempt)
        except (AttributeError, ModuleNotFoundError) as error:
            print(type(error).__name__, error)
"""
    assert run(code).splitlines() == [
        f"{kind} zmqps.{extra} needs {extra}, which is not installed: {advice(extra)}"
        for extra in extras
        for kind in ("AttributeError", "ModuleNotFoundError")
    ]


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        importlib.import_module("zmqps").nothing  # noqa: B018


def test_nothing_is_lost_where_python_leaves_out_docstrings() -> None:
    commands = [["explain", "--all"], ["checkpoint", "export", "--help"], ["--help"]]
    code = f"import sys; from zmqps.cli.main import run; sys.exit(any([run(command) for command in {commands}]))"
    assert run(code, "-OO") == run(code)
