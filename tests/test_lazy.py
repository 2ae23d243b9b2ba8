"""What `zmqps` has is found by its name, in `dir`, and with a sentence where an extra is missing."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import zmqps
from tests.pace import allow
from tests.tables import for_each
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


@for_each("extra", ["torch", "jax", "keras"])
def test_a_module_whose_extra_is_missing_says_what_to_install(extra: str) -> None:
    code = f"""
import sys
sys.modules[{extra!r}] = None
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {extra!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
del sys.modules[{extra!r}]
sys.meta_path.insert(0, Missing())
import zmqps
from zmqps.extras import advice
assert not hasattr(zmqps, {extra!r})
for attempt in ("zmqps.{extra}", "__import__('zmqps.{extra}')"):
    try:
        eval(attempt)
    except (AttributeError, ModuleNotFoundError) as error:
        print(type(error).__name__, error)
"""
    sentence = f"zmqps.{extra} needs {extra}, which is not installed: {advice(extra)}"
    assert run(code).splitlines() == [f"AttributeError {sentence}", f"ModuleNotFoundError {sentence}"]


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        importlib.import_module("zmqps").nothing  # noqa: B018


@for_each("arguments", [["explain", "--all"], ["checkpoint", "export", "--help"], ["--help"]])
def test_nothing_is_lost_where_python_leaves_out_docstrings(arguments: list[str]) -> None:
    code = f"import sys; from zmqps.cli.main import run; sys.exit(run({arguments!r}))"
    assert run(code, "-OO") == run(code)
