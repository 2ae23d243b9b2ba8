"""The settings of a follower."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zmqps.settings.fields import setting
from zmqps.settings.kinds import Choice, File, Seconds, Text
from zmqps.settings.server import DialSettings

ROWS = ("float32", "float16", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSettings(DialSettings):
    """The settings of a follower."""

    role: ClassVar[str] = "follower"

    job: str = setting("default", Text(), "The job that has the table.", shared=False)
    every: float = setting(
        0.5, Seconds(above=0), "Seconds from one look for changes to the next.", shared=False, metavar="SECONDS"
    )
    rows: str = setting(
        "float32", Choice(ROWS), "How rows are kept: int8 takes a quarter of the memory, with a scale for each row.",
        shared=False,
    )  # fmt: skip
    save: Path | None = setting(
        None, File(is_directory=True),
        "Directory for the copy, from which the next follower continues; by default, none: it reads all rows.",
        shared=False, metavar="DIR", example="followers/items",
    )  # fmt: skip
    save_every: float = setting(
        60.0, Seconds(above=0), "Seconds from one writing of the copy to the next.", shared=False, metavar="SECONDS"
    )
    changes: Path | None = setting(
        None, File(is_directory=True),
        "Directory for Parquet files of changes, one for each look that finds some; by default, none are written.",
        shared=False, metavar="DIR", example="followers/changes",
    )  # fmt: skip
