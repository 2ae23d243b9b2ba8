"""The settings that a coordinator and a server both have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zmqps.settings.fields import Settings, setting
from zmqps.settings.kinds import Choice, File, Switch, Text

#: What a log tells, from all to the least.
LEVELS = ("debug", "info", "warning", "error")
LISTEN = "Where to listen: tcp://HOST:PORT, tcp://0.0.0.0:PORT or tcp://[::]:PORT for all; port 0 takes a free one."


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(Settings):
    """The settings of a node, whatever it is."""

    role: ClassVar[str]

    address: str = setting("", Text(), LISTEN, shared=False)
    advertise: str = setting(
        "", Text(), "Advertised address, if it differs from the listen address.", shared=False, metavar="HOST[:PORT]",
        example="node-a.lan", see="operations.md#addresses",
    )  # fmt: skip
    interface: str = setting(
        "", Text(), "Network interface to listen on and to advertise, such as eth1.", metavar="NAME", example="eth1",
        see="operations.md#addresses",
    )  # fmt: skip
    name: str = setting(
        "", Text(200), "This node's name in logs and errors; by default made of host and pid.", shared=False,
        example="node-a",
    )  # fmt: skip
    job_secret: Path | None = setting(
        None, File(), "File with a shared secret (at least 16 bytes) required to join or end a job; by default, none.",
        metavar="FILE", example="job.secret", see="operations.md#strangers",
    )  # fmt: skip
    keys: Path | None = setting(
        None, File(is_directory=True),
        "Directory of keys, made by `zmqps keys create`; by default, none: nothing is encrypted.",
        metavar="DIR", example="keys", see="security.md#keys",
    )  # fmt: skip
    insecure: bool = setting(
        False, Switch(), "Allow binding beyond this host without keys: any process there can do anything."
    )
    log_level: str = setting("info", Choice(LEVELS), "What to log.", see="operations.md#logs")
