"""What CI may skip, and why: a skip for any other reason fails there, for what is missing could have been installed."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

import pytest

#: What no machine of CI can be given: reasons are searched for these.
OF_MACHINES = (
    "no GPU|no usable CuPy",  # which takes CUDA
    "not glibc",
    "no IPv6",
    "the kernel lacks|Operation not permitted|no mount namespaces here",  # containers that may do little
    "this systemd-analyze looks at running units only",
)
#: What runs elsewhere in the same run, or has no meaning.
OF_TESTS = (
    "done once, for all backends|this is the run with another backend|of JAX",
    "it differs by rank|it is that of linear",
    "no history back to the first commit",
    "could not import 'yaml'",  # by a file of `make test-engines`, all of whose tests are left out
)
ALLOWED = re.compile("|".join(OF_MACHINES + OF_TESTS))
#: What `make test-frameworks` installs, and other targets do without.
FRAMEWORKS = re.compile(
    "could not import '(torch|jax|optax|flax|keras|lightning|accelerate|transformers|pyarrow|opentelemetry"
    "|mlflow|wandb)|PyTorch is not installed|Keras is not installed|no backend of Keras"
)
#: What only root can do.
OF_ROOT = re.compile("root")
#: What `.ci/install` could not install.
MISSING = "CI_MISSING"


def is_allowed(reason: str, *, has_frameworks: bool, is_root: bool, missing: str) -> bool:
    """Tell whether CI may skip for a reason.

    Parameters
    ----------
    reason
        As pytest shows it.
    has_frameworks
        Whether PyTorch is installed: then nothing else of `FRAMEWORKS` may be missing.
    is_root
        Whether this is root, who can do all that a test may ask for.
    missing
        The programs that could not be installed, separated by spaces.
    """
    return bool(
        ALLOWED.search(reason)
        or (not has_frameworks and FRAMEWORKS.search(reason))
        or (not is_root and OF_ROOT.search(reason))
        or (missing and re.search(rf"\b({'|'.join(map(re.escape, missing.split()))})\b", reason))
    )


class Skips:
    """Lists what was skipped, by reason, and fails the run for what could have run."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            places = self._places.setdefault(report.longrepr[2].removeprefix("Skipped: "), [])
            if report.nodeid not in places:  # each process of xdist says what it has not collected
                places.append(report.nodeid)

    def _refused(self) -> list[str]:
        here = {
            "has_frameworks": find_spec("torch") is not None,
            "is_root": os.geteuid() == 0,
            "missing": os.environ.get(MISSING, ""),
        }
        return [reason for reason in self._places if not is_allowed(reason, **here)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        refused = self._refused()
        for reason, places in sorted(self._places.items()):
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            terminalreporter.write_line(f"skipped: {reason} ({places[0]}{more})")
        for reason in refused:
            terminalreporter.write_line(
                f"FAILED: CI may not skip for {reason!r}: install it in .ci/install, or allow it in tests/skips.py",
                red=True,
            )
