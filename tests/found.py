"""What random examples have found: each failure is written down, to be tried again here or elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

#: Where failing examples are kept, and what was said of each.
PLACE = Path.cwd() / "runs" / "random"
EXAMPLES, REPORT = PLACE / "examples", PLACE / "failures.txt"


def database() -> DirectoryBasedExampleDatabase:
    """Return where a run keeps the examples that fail; the next run tries them first."""
    return DirectoryBasedExampleDatabase(EXAMPLES)


class Found:
    """Writes down what failed, with the example and the line that has it tried again."""

    def __init__(self, report: Path = REPORT) -> None:
        self._report = report
        self._texts: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            said = [text for title, text in report.sections if title == "Hypothesis"]
            self._texts.append("\n".join([f"== {report.nodeid}", *said, report.longreprtext, ""]))
            self._report.parent.mkdir(parents=True, exist_ok=True)
            self._report.write_text("\n".join(self._texts))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for text in self._texts:
            terminalreporter.write_line(text)
        if self._texts:
            terminalreporter.write_line(
                f"{len(self._texts)} failed with random examples: {self._report} has what failed, {EXAMPLES} the "
                "examples. Paste the line @reproduce_failure above the test to try one again, and make its values "
                "an @example."
            )
