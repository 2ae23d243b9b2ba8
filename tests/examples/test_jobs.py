"""The script of several jobs: both learn, a name is used again, and the small one goes on beside a flood."""

from __future__ import annotations

import re

import pytest

from examples import jobs


@pytest.mark.processes
def test_two_jobs_learn_side_by_side_and_a_name_is_used_again(capsys: pytest.CaptureFixture[str]) -> None:
    jobs.main()
    said = capsys.readouterr().out
    slope, off = re.search(r"slope ([\d.]+) .* off by ([\d.]+)", said).groups()  # type: ignore[union-attr]
    assert float(slope) == pytest.approx(3.0, abs=0.1)
    assert float(off) < 0.5
    again = re.search(r"two again, larger: off by ([\d.]+)", said)
    assert again is not None
    assert float(again[1]) < 0.5
    assert "ms with a job that floods the servers" in said
    assert sorted(re.findall(r"(\w+) \(its workers have finished\)", said)) == ["flood", "one", "small", "two"]
