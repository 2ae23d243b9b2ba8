"""What the doctor says: a row for each thing looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether a run can begin: as it is, with something to know, or not."""

    GOOD = "good"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that was looked at.

    Attributes
    ----------
    where
        The host, hosts or node.
    check
        What was looked at.
    verdict
        How it is.
    found
        What was found.
    advice
        What to do; empty if nothing.
    """

    where: str
    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def good(where: str, check: str, found: str) -> Row:
    """Return a row of what is as it should be."""
    return Row(where=where, check=check, verdict=Verdict.GOOD, found=found)


def warning(where: str, check: str, found: str, advice: str) -> Row:
    """Return a row of what a run survives, but had better not meet."""
    return Row(where=where, check=check, verdict=Verdict.WARNING, found=found, advice=advice)


def wrong(where: str, check: str, found: str, advice: str) -> Row:
    """Return a row of what a run fails by."""
    return Row(where=where, check=check, verdict=Verdict.WRONG, found=found, advice=advice)


def everywhere(names: Sequence[str]) -> str:
    """Return the heading of a row about all hosts."""
    return names[0] if len(names) == 1 else "all hosts"
