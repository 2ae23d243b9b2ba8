"""JSON lines: one object for each call of `zmqps.Worker.log`, appended to a file.

``{"time": 1764098765.123, "job": "default", "node": "worker 2", "step": 12, "values": {"loss": 0.25}}``. JSON has no
NaN and no infinities: they are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which Python's ``float`` reads.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping

from zmqps.errors import ConfigurationError, UnsafeFileError
from zmqps.files import make_directory, open_to_append


class JsonLines:
    """A file of JSON lines.

    Parameters
    ----------
    path
        It, made with its directory if there is none; else lines are appended.
    """

    def __init__(self, path: str) -> None:
        try:
            make_directory(os.path.dirname(path))
            self._file = open(open_to_append(path), "a+b")
        except (OSError, UnsafeFileError) as error:
            raise ConfigurationError(f"--values jsonl:{path} cannot be written: {error}") from None
        if self._file.seek(0, 2):
            self._file.seek(-1, 2)
            if self._file.read(1) != b"\n":  # of a coordinator that was killed in the middle of a line
                self._file.write(b"\n")

    def values(self, job: str, node: str, step: int | None, at: float, values: Mapping[str, float]) -> None:
        """Write a line."""
        shown = {name: value if math.isfinite(value) else _word(value) for name, value in values.items()}
        line = {"time": round(at, 6), "job": job, "node": node, "step": step, "values": shown}
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode(errors="replace") + b"\n")

    def flush(self) -> None:
        """Let readers of the file see it."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
