"""A sample of the conformance suite in each run of the tests with frameworks; ``make test-conformance`` runs all."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

from tests.torch.conformance.cases import sample  # noqa: E402
from tests.torch.conformance.run import run_all, table  # noqa: E402

SIZE = 150


@pytest.mark.timeout(180)
def test_a_sample_of_all_combinations_is_what_pytorch_makes_of_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the handler is that of all tests, and keeps its level; warnings are compared, and not to be read one by one
    monkeypatch.setattr(caplog.handler, "level", logging.ERROR)
    verdicts = run_all(sample(SIZE))
    found = table(verdicts)
    print(found)
    if any(verdict.kind == "failed" for verdict in verdicts):
        pytest.fail(found, pytrace=False)
    assert sum(verdict.kind == "equal" for verdict in verdicts) > SIZE / 2
