"""The settings of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zmqps import checks
from zmqps.settings.fields import Settings, nested, setting
from zmqps.settings.kinds import File, Seconds, Sinks, Size, Switch, Text, Whole
from zmqps.settings.node import LISTEN, NodeSettings
from zmqps.settings.saving import Saving

#: The page's address where nothing else is said.
PAGE = "127.0.0.1:5580"
MAX_NODES = 65535


@checks.options_of("Limits")
@dataclass(frozen=True, kw_only=True)
class Limits(Settings):
    """When the nodes and jobs of a cluster are given up, and how large a message is; an option of `zmqps.LocalCluster`.

    Parameters
    ----------
    heartbeat_interval, heartbeat_timeout : float
        Seconds between signs of life, and of silence after which a node is lost.
    lease : float
        Seconds to keep a job whose workers have all left, so that they can come back; 0: until it is ended.
    idle_timeout : float
        Seconds without a worker or observer of any job after which the cluster ends; 0: never.
    fallback_timeout : float
        If every copy of a shard is lost, seconds to wait for a server before the job goes back to its last
        checkpoint; 0: such a job fails.
    slice_size : int or str
        Bytes of parameters that one message carries, such as ``"1MiB"``.
    """

    heartbeat_interval: float = setting(1.0, Seconds(above=0), "Seconds between signs of life.")
    heartbeat_timeout: float = setting(
        10.0, Seconds(above=0), "Seconds of silence after which a node is lost.",
        see="durability.md#how-soon-a-loss-is-known",
    )  # fmt: skip
    lease: float = setting(
        600.0, Seconds(at_least=0),
        "Seconds to keep a job after its last worker has left, so that workers can return; 0: until it is ended.",
    )  # fmt: skip
    idle_timeout: float = setting(
        0.0, Seconds(at_least=0),
        "End the cluster after this many seconds without any worker or observer; 0: never.",
    )  # fmt: skip
    fallback_timeout: float = setting(
        300.0, Seconds(at_least=0),
        "If every copy of a shard is lost, how long to wait for a server before going back to the last checkpoint; 0 "
        "fails the job.",
        metavar="SECONDS", see="durability.md#without-a-copy",
    )  # fmt: skip
    # Measured from 1 to 8 MiB on one host: halving it costs a tenth more processor time per step, doubling it saves
    # little and delays replies; far below the 32 MiB where malloc faults in every buffer again.
    slice_size: int = setting(
        4 << 20, Size(1 << 12, 32 << 20), "Bytes of parameters that one message carries, 4KiB to 32MiB."
    )


@checks.options_of("Watching")
@dataclass(frozen=True, kw_only=True)
class Watching(Settings):
    """Where a cluster and its jobs can be watched; an option of `zmqps.LocalCluster`.

    Parameters
    ----------
    page : str
        Where browsers find the cluster's page and Prometheus its metrics (docs/watching.md): ``HOST:PORT``, or a port
        of this host, 0 for a free one, which the coordinator's log tells; by default nowhere.
    page_token : path, optional
        File with the token that browsers and scrapers of the page must show; by default, one is made where needed.
    values : sequence of str
        Where what scripts log is written (`Worker.log`): ``jsonl:FILE``, ``tensorboard:DIR``, ``mlflow:URI``,
        ``wandb:PROJECT``, or what ``MODULE:FACTORY`` returns.
    """

    page: str = setting(
        "", Text(300),
        f"Show the cluster in browsers, and Prometheus its /metrics, by default at {PAGE}, for this host only; port 0 "
        "takes a free one. Needs the extra `watch`.",
        shared=False, alone=PAGE, metavar="[HOST:PORT]", example=PAGE, see="watching.md#the-page",
    )  # fmt: skip
    page_token: Path | None = setting(
        None, File(),
        "File with the token that browsers and scrapers of the page must show; by default, one is made where needed.",
        shared=False, metavar="FILE", example="page.token",
    )  # fmt: skip
    values: tuple[str, ...] = setting(
        (), Sinks(),
        "Write what scripts log (worker.log) to jsonl:FILE, tensorboard:DIR, mlflow:URI, wandb:PROJECT, or what "
        "MODULE:FACTORY() returns. May be repeated.",
        metavar="KIND:WHERE", example='["jsonl:values.jsonl"]', see="watching.md#what-your-script-logs",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings(NodeSettings, Limits, Watching):
    """The settings of a coordinator: what its cluster consists of, and its timeouts."""

    role: ClassVar[str] = "coordinator"

    address: str = setting(
        "", Text(), LISTEN, shared=False, shown="tcp://127.0.0.1:5570", example="tcp://0.0.0.0:5570",
        see="operations.md#addresses",
    )  # fmt: skip
    servers: int = setting(1, Whole(1, MAX_NODES), "How many servers make the cluster.", example=2)
    workers: int | None = setting(
        None, Whole(1, MAX_NODES), "How many workers a job expects; by default, any number.", example=4
    )
    replicas: int = setting(
        0, Whole(0, 2), "Copies of each shard on other servers, which take over when one is lost; 0: none.",
        see="durability.md#replicas",
    )  # fmt: skip
    once: bool = setting(False, Switch(), "End the cluster when its first job ends, however it ends.")
    saving: Saving = nested(Saving)
    journal: Path | None = setting(
        None, File(is_directory=True),
        "Directory for the coordinator's journal; a restarted coordinator resumes from it. By default, none.",
        shared=False, metavar="DIR", example="/var/lib/zmqps", see="durability.md#the-coordinator-comes-back",
    )  # fmt: skip
    patience: float = setting(
        600.0, Seconds(at_least=0), "Seconds that members wait for a journaled coordinator to come back."
    )
    #: Where there is neither a job secret nor keys, take servers of this user on this host alone; launchers set it.
    own_servers: bool = setting(False, Switch())
