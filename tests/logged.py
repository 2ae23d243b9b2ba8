"""What was logged, for tests that count it."""

from __future__ import annotations

import logging

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return all records but asyncio's of slow steps.

    Its debug mode, which CI has, tells of each step of more than 0.1 s, and that is the machine's doing.
    """
    return [r for r in caplog.records if r.name != "asyncio" or not r.getMessage().startswith("Executing <")]
