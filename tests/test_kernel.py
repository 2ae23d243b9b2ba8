"""The kernel imports no extension."""

from __future__ import annotations

import pytest

from tests.imports import ROOT
from tests.kernel import EXTENSIONS, LISTS, arrows, is_extension, kernel

pytestmark = pytest.mark.tree


def test_the_kernel_imports_no_extension() -> None:
    assert arrows() == []


def test_extensions_are_there_and_the_kernel_is_not_empty() -> None:
    assert {place for place in EXTENSIONS if not (ROOT / "zmqps/core" / place).exists()} == set()
    assert all((ROOT / path).exists() for path in LISTS)
    assert "zmqps/core/server/ledger.py" in kernel()
    assert not is_extension("zmqps/core/server/machine.py")
    assert is_extension("zmqps/core/server/tables/rows.py")
