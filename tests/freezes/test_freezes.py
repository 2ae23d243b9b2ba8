"""A few random freezes of every role: every value is exact, and nobody alive is given up for another's sleep."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.freezes.run import freezes
from tests.pace import stretch


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_random_freezes_lose_nothing(mode: str, tmp_path: Path) -> None:
    out = freezes(mode, 5, tmp_path, workers=2, timeout=stretch(1.5), seed=3)
    assert out.broken == []
    assert len(out.done) == 5
