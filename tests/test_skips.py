"""What CI may skip: what no machine of it has, and not what it could have installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nested import run_pytest
from tests.skips import is_allowed
from tests.tables import for_each, one_in


@for_each(
    "reason, here, allowed",
    [
        ("no GPU", {}, True),
        ("no ssh: not installed: sshd", {}, False),
        ("no ssh: not installed: sshd", {"missing": "promtool sshd"}, True),
        ("no ssh: not installed: sshd", {"missing": "promtool"}, False),
        ("there is no sshd", {"missing": "ssh"}, False),
        ("only root can be another user", {}, False),
        ("only root can be another user", {"is_root": False}, True),
        ("could not import 'torch': No module named 'torch'", {"has_frameworks": False}, True),
        ("could not import 'mlflow.tracking': No module named 'mlflow'", {"has_frameworks": False}, True),
        ("could not import 'pyarrow': No module named 'pyarrow'", {}, False),
        ("could not import 'prometheus_client': No module named 'prometheus_client'", {"has_frameworks": False}, False),
        ("I have no time", {}, False),
    ],
)
def test_a_skip_is_allowed_for_what_cannot_be_installed_here(
    reason: str, here: dict[str, object], allowed: bool
) -> None:
    usual = {"has_frameworks": True, "is_root": True, "missing": ""}
    assert is_allowed(reason, **(usual | here)) == allowed  # type: ignore[arg-type]


@pytest.mark.parametrize(("reason", "code"), one_in(2, [("not installed: sshd", 1), ("no GPU", 0)]))
def test_ci_lists_skips_and_fails_for_one_that_is_not_allowed(tmp_path: Path, reason: str, code: int) -> None:
    program = f"import pytest\n\ndef test_it():\n    pytest.skip({reason!r})\n"
    said = run_pytest(tmp_path, program, code=code, CI="1", CI_MISSING="")
    assert f"skipped: {reason} (test_it.py::test_it)" in said
    assert ("FAILED: CI may not skip for" in said) == bool(code)
