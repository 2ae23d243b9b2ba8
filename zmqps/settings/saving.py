"""Where and how the jobs of a cluster are saved and restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zmqps import checks
from zmqps.errors import ConfigurationError
from zmqps.settings.fields import Settings, setting
from zmqps.settings.kinds import Cadence, Choice, Names, Switch, Where, Whole

VIA = ("shared", "coordinator")
#: A reader opens all checkpoints that one builds upon; it refuses 100 of them.
MAX_FULL_EVERY = 50


@checks.options_of("Saving")
@dataclass(frozen=True, slots=True, kw_only=True)
class Saving(Settings):
    """Where and how the jobs of a cluster are saved and restored; an option of `zmqps.LocalCluster`.

    Parameters
    ----------
    checkpoint : path, optional
        Where jobs are saved, used by this cluster alone while it runs; by default nowhere.
    restore : path, optional
        A checkpoint, or a directory whose latest good one is taken, from which the saved job continues.
    every : str
        Save jobs every ``5min``, ``90s``, ``2h`` or ``500steps``; by default when asked (`Worker.checkpoint`), and at
        their end.
    at_end : bool
        Save each job once more when it ends, or the cluster does; `LocalCluster.stop` waits for that.
    full_every : int
        How many checkpoints of a job with tables there are for each that is whole; the others hold only the rows that
        have changed since the one before.
    keep : int
        How many checkpoints of a job are kept, with those that they build upon.
    via : {"shared", "coordinator"}
        Whether servers write to the directory themselves, or send what they write to the coordinator.
    restore_values_only : bool
        Restore values only, not the optimizer's state; the job may have another optimizer.
    restore_names : mapping of str to str
        Name of a parameter in the job -> its name in the checkpoint, where they differ.
    """

    checkpoint: str | None = setting(
        None, Where(), "Directory for checkpoints, shared by all hosts, used by this cluster only; by default, none.",
        metavar="DIR", example="/data/runs", see="checkpoints.md",
    )  # fmt: skip
    restore: str | None = setting(
        None, Where(), "Resume the saved job from this checkpoint, or from the latest good one in a directory.",
        metavar="PATH", example="/data/runs", see="durability.md#checkpoints",
    )  # fmt: skip
    every: str = setting(
        "", Cadence(), "Also save jobs at this interval; by default, on request and at the end.",
        option="checkpoint_every", metavar="5min|500steps", example="5min", see="durability.md#checkpoints",
    )  # fmt: skip
    at_end: bool = setting(
        True, Switch(), "With --checkpoint, save each job once more when it or the cluster ends.",
        option="checkpoint_at_end", see="durability.md#at-the-end",
    )  # fmt: skip
    full_every: int = setting(
        1, Whole(1, MAX_FULL_EVERY),
        "Every N-th checkpoint of a job with tables has all rows; those between have the rows that have changed since "
        "the one before.",
        option="checkpoint_full_every", metavar="N", see="durability.md#only-what-has-changed",
    )  # fmt: skip
    keep: int = setting(
        3, Whole(at_least=1), "How many checkpoints of a job to keep, with those that they build upon.",
        option="checkpoint_keep",
    )  # fmt: skip
    via: str = setting(
        "shared", Choice(VIA), "coordinator: its host alone has the directory; servers send it what they write.",
        option="checkpoint_via",
    )  # fmt: skip
    restore_values_only: bool = setting(
        False, Switch(), "Restore values only, not the optimizer's state; the job may use another optimizer."
    )
    restore_names: Mapping[str, str] = setting(
        {}, Names(), "A parameter with another name in the checkpoint. May be repeated.",
        metavar="NAME=NAME THERE", example='["w=weight"]',
    )  # fmt: skip

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.every and self.checkpoint is None:
            raise ConfigurationError("to save jobs regularly, name a directory: --checkpoint DIR")

    @property
    def saves_at_end(self) -> bool:
        """Whether the end of a cluster may take as long as its jobs take to be saved."""
        return self.at_end and self.checkpoint is not None
