"""TensorBoard's event files, written with tensorboardX: a run for each worker of each job, the names as tags."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from zmqps.errors import ConfigurationError
from zmqps.extras import advice
from zmqps.files import make_directory
from zmqps.sinks.sink import Runs


class _Run:
    """An open event file."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.num_calls = 0


class TensorBoard:
    """A directory for ``tensorboard --logdir``: ``JOB/worker-2/events.out.tfevents.…``, a new file for each life.

    What comes without a step is numbered in the order it comes.

    Parameters
    ----------
    directory
        It, made if there is none.
    """

    def __init__(self, directory: str) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
        except ImportError:
            raise ConfigurationError(
                f"--values tensorboard:DIR needs tensorboardX, which is not installed here: {advice('tensorboard')}"
            ) from None
        try:
            make_directory(directory)
        except OSError as error:
            raise ConfigurationError(f"--values tensorboard:{directory} cannot be written: {error}") from None
        self._directory = Path(directory)
        self._writer, self._event = EventsWriter, Event
        self._numbers = count()
        self._runs: Runs[_Run] = Runs(self._begin, lambda run: run.writer.close())

    def _begin(self, job: str, node: str) -> _Run:
        place = self._directory / folder(job) / folder(node.replace(" ", "-"))
        make_directory(place)
        # an existing file would be overwritten: no two may have one name
        return _Run(self._writer(str(place / "events"), f".{os.getpid()}.{next(self._numbers)}"))

    def values(self, job: str, node: str, step: int | None, at: float, values: Mapping[str, float]) -> None:
        """Write an event."""
        run = self._runs.of(job, node)
        event = self._event(wall_time=at, step=run.num_calls if step is None else step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        run.num_calls += 1
        run.writer.write_event(event)

    def flush(self) -> None:
        """Let readers of the files see it."""
        for run in self._runs.each():
            run.writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._runs.close()


def folder(name: str) -> str:
    """Return a name as that of a folder; one that had to be changed for that gets a few digits to be unique."""
    plain = re.sub(r"[^\w.+=@-]", "_", name)
    if plain == name and plain.strip("."):
        return plain
    return f"{plain.lstrip('.') or '_'}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:6]}"
