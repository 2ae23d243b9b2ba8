"""Errors of checkpoints: such as cannot be used, and such as cannot be made."""

from __future__ import annotations

from zmqps.errors.base import PSError


class CheckpointError(PSError, RuntimeError):
    """A checkpoint that cannot be used, or written.

    Attributes
    ----------
    path : str
        Of the checkpoint, or of the file in question.
    what : str
        What is wrong with it.
    good : str
        The newest other checkpoint of the job that looks whole; empty if there is none, or none was looked for.
    advice : str
        What to do.
    """

    code = 70
    text = "{path}: {what}; {advice}"
    path: str
    what: str
    good: str
    advice: str


class CheckpointNotFoundError(CheckpointError, LookupError):
    """There is no checkpoint there, or none that is whole."""

    code = 71


class CheckpointForeignError(CheckpointError):
    """A directory that is no checkpoint of zmqps, or one that was never finished."""

    code = 72


class CheckpointFormatError(CheckpointError):
    """A checkpoint in a format that this version does not know yet."""

    code = 73


class CheckpointCorruptError(CheckpointError):
    """A file of a checkpoint is missing, cut short or not what was written."""

    code = 74


class CheckpointMismatchError(CheckpointError):
    """A checkpoint of another model, or another optimizer, than what it is to be restored to."""

    code = 75


class CheckpointStorageError(CheckpointError, OSError):
    """The disk is full or read-only, or fails; what was saved before is as it was."""

    code = 76


class CheckpointFailedError(PSError, RuntimeError):
    """A checkpoint that was asked for could not be made. Training goes on, and those before it are as they were."""

    code = 77
    text = "no checkpoint of the job {job!r} was made: {why}; training goes on, and the checkpoints before it stay"
    job: str
    why: str
