"""The modes by their names, as options of `zmqps.Worker.init` and of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODES: Mapping[str, Mapping[str, Any]] = {
    "async": {"mode": "async"},
    "bounded": {"mode": "bounded", "staleness": 2},
    "sync": {"mode": "sync"},
}
