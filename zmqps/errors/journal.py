"""Errors of a coordinator's journal: from what it cannot go on, and what to do instead."""

from __future__ import annotations

from zmqps.errors.base import PSError
from zmqps.errors.configuration import ConfigurationError


class JournalError(ConfigurationError):
    """A coordinator cannot go on from the journal that it was told to keep, and has not begun another one.

    What to do next
    ---------------
    - Do what the text says. A journal belongs to one cluster, one host's disk and one user.
    - To begin anew without it, give the coordinator another directory, and the jobs a checkpoint: `--restore`.
    """

    code = 85
    text = "cannot go on from the coordinator's journal {path}: {why}; {advice}"
    path: str
    why: str
    advice: str


class JournalBehindError(PSError, RuntimeError):
    """Servers have steps of which the coordinator's journal knows nothing: its host lost what was written last.

    What to do next
    ---------------
    - Begin the job again, from a checkpoint if there is one: what its servers have cannot be told from what they should
      have.
    - Keep the journal on a disk that does not lose what it has confirmed; a cache that forgets at a loss of power does.
    """

    code = 86
    text = (
        "the coordinator's journal is behind: {server} has {theirs} steps of job {job!r}, the journal {ours}, so who "
        "had a part in the others is not known; begin the job again, from a checkpoint if there is one"
    )
    server: str
    job: str
    theirs: int
    ours: int
