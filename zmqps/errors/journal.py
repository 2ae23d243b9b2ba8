"""Errors of a coordinator's journal: why it cannot resume, and what to do instead."""

from __future__ import annotations

from zmqps.errors.base import PSError
from zmqps.errors.configuration import ConfigurationError


class JournalError(ConfigurationError):
    """A coordinator cannot resume from its journal, and has not begun another one.

    What to do next
    ---------------
    - Do what the text says. A journal belongs to one cluster, one host's disk and one user.
    - To begin again without it, give the coordinator another directory, and the jobs a checkpoint: `--restore`.
    """

    code = 85
    text = "cannot resume from the coordinator's journal {path}: {why}; {advice}"
    path: str
    why: str
    advice: str


class JournalBehindError(PSError, RuntimeError):
    """Servers have steps that the coordinator's journal lacks: its host lost the last writes.

    What to do next
    ---------------
    - Begin the job again, from a checkpoint if there is one: the servers' values cannot be trusted.
    - Keep the journal on a disk that does not lose confirmed writes in a power failure.
    """

    code = 86
    text = (
        "the coordinator's journal is behind: {server} has {theirs} steps of job {job!r}, the journal {ours}, so the "
        "contributors of the others are unknown; begin the job again, from a checkpoint if there is one"
    )
    server: str
    job: str
    theirs: int
    ours: int
