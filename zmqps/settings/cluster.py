"""The settings of a whole cluster, and of the commands that start one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqps.settings.coordinator import CoordinatorSettings
from zmqps.settings.fields import Settings, nested, setting
from zmqps.settings.kinds import Choice, File, Seconds, Switch, Text, Whole
from zmqps.settings.server import Servers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings(CoordinatorSettings):
    """The settings of a cluster: those of its coordinator, and what its servers need besides them."""

    server: Servers = nested(Servers)
    restart_servers: int = setting(
        3, Whole(at_least=0),
        "How often to restart each failed server, where jobs survive its loss: --replicas, --checkpoint.",
        metavar="N", see="durability.md",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings(Settings):
    """The settings of each command that starts a cluster with its workers."""

    restart_workers: int = setting(
        0, Whole(at_least=0),
        "How often to restart each failed worker; it rejoins its job under its name and rank.",
        metavar="N", see="launch.md#workers-that-come-back",
    )  # fmt: skip
    drain_timeout: float = setting(
        5.0, Seconds(at_least=0), "How long workers may take after SIGTERM to finish their step (zmqps.drain_on).",
        metavar="SECONDS", see="launch.md#draining-a-worker",
    )  # fmt: skip
    name: str = setting("cluster", Text(200), "Logs go to runs/NAME/logs.", shared=False)
    directory: Path = setting(Path(), File(is_directory=True), "Where runs/ and .zmqps/ are.")


def _timeout(default: float, text: str) -> Any:
    return setting(default, Seconds(at_least=0), text, shared=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings(LauncherSettings):
    """The settings of ``zmqps up``."""

    cluster: ClusterSettings = nested(
        ClusterSettings, without=("advertise", "journal", "name"),
        but={
            "address": {"help": "Where the coordinator listens; port 0 takes a free one."},
            "workers": {"help": "How many workers a job expects; with COMMAND they are started."},
        },
    )  # fmt: skip
    pin_workers: bool = setting(False, Switch(), "Show each worker one GPU, in turn (CUDA_VISIBLE_DEVICES).")
    timeout: float = _timeout(30.0, "Seconds to wait for the start.")
    detach: bool = setting(False, Switch(), "Return when the servers have joined.", short="d", shared=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(LauncherSettings):
    """The settings of ``zmqps run``."""

    address: str = setting(
        "", Text(), "Where rank 0 runs the coordinator; by default as the scheduler says.", shared=False,
        metavar="HOST:PORT", example="host-a:5570",
    )  # fmt: skip
    rank: int | None = setting(
        None, Whole(at_least=0), "Which task this is; by default as the scheduler says.", shared=False, example=0,
        see="launch.md#by-a-scheduler-zmqps-run",
    )  # fmt: skip
    size: int | None = setting(
        None, Whole(1, 65535), "How many tasks; by default as the scheduler says.", shared=False, example=4
    )
    cluster: ClusterSettings = nested(
        ClusterSettings, without=("address", "advertise", "journal", "name", "patience", "servers_per_gpu", "workers"),
        but={"interface": {"help": "The network interface by which this host's servers are reached."}},
    )  # fmt: skip
    workers_each: int = setting(1, Whole(1, 4096), "How many workers each task runs.")
    combine: str = setting(
        "none", Choice(("none", "host")),
        "host: the workers of a host sum their gradients in shared memory and push once.", see="combine.md",
    )  # fmt: skip
    servers_apart: bool = setting(False, Switch(), "Tasks that have a server run no workers.")
    server_tasks: int | None = setting(
        None, Whole(1, 65535),
        "The first N tasks have all servers, and no workers, as the first part of a heterogeneous job.",
        metavar="N", example=2,
    )  # fmt: skip
    timeout: float = _timeout(120.0, "Seconds to wait for the others.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings(LauncherSettings):
    """The settings of ``zmqps launch``."""

    hosts: Path | None = setting(
        None, File(exists=True), "The hosts, one a line: host slots=4, user@host servers=1 workers=4 interface=eth1.",
        metavar="FILE", example="hosts.txt", see="launch.md#hosts",
    )  # fmt: skip
    host: str = setting(
        "", Text(64 << 10), "The hosts, in place of a file.", short="H", shared=False, metavar="HOST:SLOTS,…",
        example="host1:4,host2:4",
    )  # fmt: skip
    servers: int | None = setting(None, Whole(1, 65535), "How many servers.", shown="as the hosts say, or 1", example=2)
    cluster: ClusterSettings = nested(
        ClusterSettings,
        without=("address", "advertise", "journal", "name", "page_token", "patience", "servers", "servers_per_gpu"),
        but={
            "workers": {"help": "How many workers; by default one for each slot."},
            "interface": {"help": "Default network interface for hosts that do not name one."},
            "keys": {
                "help": "A directory of keys of your own, as `zmqps keys create` makes it; by default each cluster "
                "gets new ones."
            },
            "insecure": {
                "help": "Make no keys: nothing is encrypted, and any process that reaches a host of the cluster can "
                "do anything."
            },
        },
    )  # fmt: skip
    port: int = setting(0, Whole(0, 65535), "The coordinator's port; 0: any.", shared=False)
    python: str = setting(
        "", Text(), "The Python with zmqps on the hosts; by default the path of this one.", metavar="PATH",
        example="/opt/venv/bin/python",
    )  # fmt: skip
    remote_directory: str = setting(
        "", Text(), "Where the workers run on the hosts; by default the path of this one.", metavar="DIR",
        example="/srv/train", see="launch.md#what-the-workers-get",
    )  # fmt: skip
    sync_code: bool = setting(
        False, Switch(), "First copy the script's folder to the hosts (rsync), except secrets and what git ignores."
    )
    ssh: str = setting("ssh", Text(), "Command to run instead of ssh, with the same arguments.", metavar="COMMAND")
    silence: float = setting(
        20.0, Seconds(at_least=1), "Seconds of silence after which a host counts as lost, and ends its processes."
    )
    timeout: float = _timeout(60.0, "Seconds to wait for the start.")
    dry_run: bool = setting(False, Switch(), "Print what would be run, and run nothing.", shared=False)
