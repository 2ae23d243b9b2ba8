"""Options that a flag, an environment variable or the configuration file can set, in this order.

A variable is ``ZMQPS_<COMMAND>_<OPTION>`` or, for every command that has the option,
``ZMQPS_<OPTION>``; the more specific one wins. In the file a table ``[command]`` and the top level
do the same. One option has the name of a command, ``coordinator``, and TOML knows no key that is a table and a string:
at the top of a file it is ``coordinator-endpoint``.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
import reprlib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from zmqps.errors import ConfigurationError, UnsafeFileError
from zmqps.files import TEXT_NBYTES, open_given, read_file
from zmqps.launch.supervision import DRAIN_TIMEOUT_S, RESTARTS
from zmqps.logs.lines import LEVELS

if TYPE_CHECKING:
    from zmqps.nodes.checkpoints import CheckpointConfig

F = TypeVar("F", bound=Callable[..., Any])

#: The page's default address.
PAGE = "127.0.0.1:5580"
#: What a file may hold in the place of a value.
PLAIN = (bool, int, float, str, list, dict, datetime.date, datetime.time)
#: The name at the top of a file of the option that has the name of a command, and so of a table.
ENDPOINT_KEY, ENDPOINT_OPTION = "coordinator-endpoint", "coordinator"
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


class Setting(click.Option):
    """An option of a command.

    Parameters
    ----------
    shared
        Whether it means the same for every command that has it, so that ``ZMQPS_<OPTION>`` and the
        top level of the file may set it. An address to bind is not: two nodes cannot have one.
    """

    def __init__(self, *args: Any, shared: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shared = shared
        self.show_envvar = False

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the command's variable, else of the shared one."""
        specific = super().resolve_envvar_value(ctx)
        if specific is not None or not self.shared or self.name is None or not self.allow_from_autoenv:
            return specific
        self.envvar = f"ZMQPS_{self.name.upper()}"
        try:
            return super().resolve_envvar_value(ctx)
        finally:
            self.envvar = None

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value in the option's type; what a file holds is converted from no other type than its own."""
        kinds, takes = self._takes()
        if self.multiple and isinstance(value, str):
            value = [value]
        for one in value if self.multiple and isinstance(value, list | tuple) else [value]:
            if isinstance(one, PLAIN) and (not isinstance(one, kinds) or (isinstance(one, bool) and not self.is_flag)):
                self._refuse(ctx, one, takes)
            if isinstance(one, str) and "\0" in one:
                self._refuse(ctx, one, takes)
        try:
            plain = super().type_cast_value(ctx, value)
        except (TypeError, ValueError, OverflowError):
            self._refuse(ctx, value, takes)
        if isinstance(plain, float) and not math.isfinite(plain):
            self._refuse(ctx, value, takes)
        return plain

    def _takes(self) -> tuple[tuple[type, ...], str]:
        if self.is_flag:
            return (bool, str), "true or false"
        if isinstance(self.type, Size):
            return (int, str), "a size, such as 1048576, 512KiB or 1MiB"
        if isinstance(self.type, click.types.IntParamType):
            return (int, str), "a whole number"
        if isinstance(self.type, click.types.FloatParamType):
            return (int, float, str), "a finite number"
        return (str,), "a string"

    def _refuse(self, ctx: click.Context, value: object, takes: str) -> NoReturn:
        try:
            given = reprlib.repr(value)
        except ValueError:  # Python writes no int of more than 4300 digits
            given = "a number of thousands of digits"
        raise click.BadParameter(f"{given} is not {takes}", ctx, self)


def setting(*names: str, **kwargs: Any) -> Callable[[F], F]:
    """Declare a `Setting`; its default is shown in the help."""
    return click.option(*names, cls=Setting, **{"show_default": True, **kwargs})


class Size(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A number of bytes: 1048576, 512KiB, 1MiB, 8GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)", str(value).strip().lower())
        if match is None or match[2] not in UNITS:
            self.fail(f"{value!r} is not a size; write 1048576, 512KiB or 1MiB", param, ctx)
        return int(float(match[1]) * UNITS[match[2]])


log_level = setting("--log-level", type=click.Choice(LEVELS), default="info", help="What to log.")


#: The coordinator's options beside ``--servers``. A test compares the defaults with `CoordinatorOptions`.
CLUSTER_SETTINGS = (
    setting(
        "--replicas", type=click.IntRange(0, 2), default=0,
        help="Copies of each shard on other servers, which take over when one is lost; 0: none.",
    ),
    setting("--heartbeat-interval", type=float, default=1.0, help="Seconds between signs of life."),
    setting("--heartbeat-timeout", type=float, default=10.0, help="Seconds of silence after which a node is lost."),
    setting(
        "--lease", type=click.FloatRange(min=0), default=600.0,
        help="Seconds to keep a job after its last worker is gone, so that workers can return; 0: until it is ended.",
    ),
    setting(
        "--idle-timeout", type=click.FloatRange(min=0), default=0.0,
        help="End the cluster after this many seconds without any worker or observer; 0: never.",
    ),
    setting("--once", is_flag=True, help="End the cluster when its first job ends, however it ends."),
    setting("--slice-size", type=Size(), default="4MiB", help="Bytes of parameters that one message carries."),
    setting(
        "--checkpoint", metavar="DIR",
        help="Directory for checkpoints, shared by all hosts, used by this cluster only; by default, none.",
    ),
    setting(
        "--checkpoint-every", metavar="5min|500steps",
        help="Also save jobs at this interval; by default, on request and at the end.",
    ),
    setting(
        "--checkpoint-at-end", type=click.Choice(("yes", "no")), default="yes",
        help="With --checkpoint, save each job once more when it or the cluster ends.",
    ),
    setting(
        "--checkpoint-full-every", type=click.IntRange(1, 50), default=1, metavar="N",
        help="Every N-th checkpoint of a job with tables has all rows; those between have the rows that have "
        "changed since the one before.",
    ),
    setting(
        "--checkpoint-via", type=click.Choice(("shared", "coordinator")), default="shared",
        help="coordinator: its host alone has the directory; servers send it what they write.",
    ),
    setting(
        "--fallback-timeout", type=click.FloatRange(min=0), default=300.0, metavar="SECONDS",
        help="If every copy of a shard is lost, how long to wait for a server before going back to the last "
        "checkpoint; 0 fails the job.",
    ),
    setting("--keep", type=click.IntRange(min=1), default=3, help="How many checkpoints of a job to keep."),
    setting(
        "--restore", metavar="PATH",
        help="Resume the saved job from this checkpoint, or from the latest good one in a directory.",
    ),
    click.option(
        "--restore-name", multiple=True, allow_from_autoenv=False, metavar="NAME=NAME THERE",
        help="A parameter with another name in the checkpoint.  May be repeated.",
    ),
    setting(
        "--restore-values-only", is_flag=True,
        help="Restore values only, not the optimizer's state; the job may use another optimizer.",
    ),
    click.option(
        "--values", multiple=True, allow_from_autoenv=False, metavar="KIND:WHERE",
        help="Write what scripts log (worker.log) to jsonl:FILE, tensorboard:DIR, mlflow:URI, wandb:PROJECT, or "
        "what MODULE:FACTORY() returns.  May be repeated.",
    ),
)  # fmt: skip


def cluster_settings(
    command: F, *, servers: str = "How many servers make the cluster.", servers_default: bool | str = True
) -> F:
    """Add the coordinator's options.

    Parameters
    ----------
    command
        To which the options are added.
    servers, servers_default
        What the help says of ``--servers``, and of its default.
    """
    number = click.IntRange(1, 65535)
    first = setting("--servers", type=number, default=1, show_default=servers_default, help=servers)
    for option in reversed((first, *CLUSTER_SETTINGS)):
        command = option(command)
    return command


def checkpoint_config(told: Mapping[str, Any]) -> CheckpointConfig:
    """Return where jobs are saved, when, and what they begin from, of the options of a command."""
    from zmqps.nodes.checkpoints import CheckpointConfig

    return CheckpointConfig(
        directory=told["checkpoint"],
        every=told["checkpoint_every"] or "",
        full_every=told["checkpoint_full_every"],
        at_end=told["checkpoint_at_end"] == "yes",
        keep=told["keep"],
        via=told["checkpoint_via"],
        restore=told["restore"],
        restore_optimizer=not told["restore_values_only"],
        restore_names=_names(told["restore_name"]),
    )


def _names(told: tuple[str, ...]) -> dict[str, str]:
    pairs = [entry.partition("=") for entry in told]
    for name, equals, there in pairs:
        if not (name and equals and there):
            raise click.UsageError(f"--restore-name {name!r}: write NAME=NAME THERE")
    return {name: there for name, _, there in pairs}


restart_workers = setting(
    "--restart-workers", type=click.IntRange(min=0), default=0, metavar="N",
    help="How often to restart each failed worker; it rejoins its job under its name and rank.",
)  # fmt: skip
combine = setting(
    "--combine", type=click.Choice(["none", "host"]), default="none",
    help="host: the workers of a host sum their gradients in shared memory and push once (docs/combine.md).",
)  # fmt: skip
restart_servers = setting(
    "--restart-servers", type=click.IntRange(min=0), default=RESTARTS, metavar="N",
    help="How often to restart each failed server, where jobs survive its loss: --replicas, --checkpoint.",
)  # fmt: skip
drain_timeout = setting(
    "--drain-timeout", type=click.FloatRange(min=0), default=DRAIN_TIMEOUT_S, metavar="SECONDS",
    help="How long workers may take after SIGTERM to finish their step (zmqps.drain_on).",
)  # fmt: skip
handover_timeout = setting(
    "--handover-timeout", type=click.FloatRange(min=0), default=60.0, metavar="SECONDS",
    help="How long it may take after SIGTERM to hand its shards over to other servers; 0: it does not.",
)  # fmt: skip
insecure = setting(
    "--insecure", is_flag=True, help="Allow binding beyond this host without keys: any process there can do anything."
)
keys = setting(
    "--keys", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Directory of keys, made by `zmqps keys create`; by default, none: nothing is encrypted.",
)  # fmt: skip
io_threads = setting(
    "--io-threads", type=click.IntRange(1, 64), default=2,
    help="Threads of a server that read and write sockets and, with keys, encrypt.",
)  # fmt: skip
journal = setting(
    "--journal", shared=False, type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Directory for the coordinator's journal; a restarted coordinator resumes from it. By default, none.",
)  # fmt: skip
page = setting(
    "--page", shared=False, is_flag=False, flag_value=PAGE, metavar="[HOST:PORT]",
    help=f"Show the cluster in browsers, and Prometheus its /metrics, by default at {PAGE}, for this host only; port 0 "
    "takes a free one. Needs the extra `watch`.",
)  # fmt: skip
page_token = setting(
    "--page-token", shared=False, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="File with the token that browsers and scrapers of the page must show; by default, one is made where needed.",
)  # fmt: skip
patience = setting(
    "--patience", type=click.FloatRange(min=0), default=600.0,
    help="Seconds that members wait for a journaled coordinator to come back.",
)  # fmt: skip
metrics = setting(
    "--metrics", shared=False, metavar="ADDRESS",
    help="Serve Prometheus metrics at HOST:PORT, or at a PORT for this host only; 0 takes a free one.",
)  # fmt: skip
metrics_token = setting(
    "--metrics-token", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="File with the token that scrapers must send (Authorization: Bearer …); by default none, and loopback only.",
)  # fmt: skip
advertise = setting(
    "--advertise", shared=False, metavar="HOST[:PORT]",
    help="Advertised address, if it differs from the listen address.",
)  # fmt: skip
interface = setting(
    "--interface", metavar="NAME",
    help="Network interface to listen on and to advertise, such as eth1.",
)  # fmt: skip
ports = setting(
    "--ports", metavar="FIRST-LAST",
    help="Servers take the first free port of these, such as 5571-5580; by default any. For firewalls.",
)  # fmt: skip
kernels = setting(
    "--kernels", type=click.Choice(("numba", "numpy")), default="numba", help="The kernels that servers compute with."
)
memory = setting(
    "--memory", type=Size(), metavar="SIZE",
    help="Memory for the shards of all jobs on a server, such as 8GB; by default, what is free on its host.",
)  # fmt: skip
device = setting(
    "--device", default="cpu", metavar="cpu|cuda|cuda:N|auto",
    help="Device that holds and updates shards; auto: a GPU if one works.",
)  # fmt: skip
job_secret = setting(
    "--job-secret", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="File with a shared secret (at least 16 bytes) required to join or end a job; by default, none.",
)  # fmt: skip
apply_threads = setting(
    "--apply-threads", type=click.IntRange(1, 64), default=1, help="Threads that update one slice on a server."
)
directory = setting(
    "--directory", type=click.Path(file_okay=False, path_type=Path), default=Path(),
    help="Where runs/ and .zmqps/ are.",
)  # fmt: skip
#: Set by the commands that start a cluster on this host: no other server takes a place.
own_servers = click.option("--own-servers", is_flag=True, hidden=True, allow_from_autoenv=False)
parent_fd = click.option("--parent-fd", type=int, hidden=True, allow_from_autoenv=False)


# --- the file ---------------------------------------------------------------------------------


def read_config(path: Path, group: click.Group) -> dict[str, Any]:
    """Return a configuration file as click's ``default_map``.

    Raises
    ------
    ConfigurationError
        The file cannot be read, or contains a key that no command knows.
    """
    try:
        text = read_file(path, TEXT_NBYTES, open_given).decode()
        entries = tomllib.loads(text)
    except UnsafeFileError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, tomllib.TOMLDecodeError) and _collides(text):
            raise ConfigurationError(
                f"{path}: TOML takes coordinator = … at the top and the table [coordinator] for the same key; "
                f'write {ENDPOINT_KEY} = "tcp://HOST:PORT" at the top'
            ) from None
        raise ConfigurationError(f"cannot read {path}: {error}") from None
    options = {name: _options(command) for name, command in group.commands.items()}
    shared = {name for settings in options.values() for name, setting in settings.items() if setting.shared}
    defaults: dict[str, dict[str, Any]] = {name: {} for name in options}
    for key, value in entries.items():
        name = ENDPOINT_OPTION if key.replace("_", "-") == ENDPOINT_KEY else key.replace("-", "_")
        if not isinstance(value, dict):
            if name not in shared:
                known = [command for command, settings in options.items() if name in settings]
                raise _unknown(path, key, shared, f"; it belongs into [{'] or ['.join(known)}]" if known else "")
            for command, settings in options.items():
                if name in settings:
                    defaults[command].setdefault(name, value)
            continue
        if key not in options:
            raise _unknown(path, key, set(options))
        for inner, inner_value in value.items():
            inner_name = inner.replace("-", "_")
            if inner_name not in options[key] or isinstance(inner_value, dict):
                raise _unknown(path, f"{key}.{inner}", set(options[key]))
            defaults[key][inner_name] = inner_value
    return defaults


def _collides(text: str) -> bool:
    """Whether a file names the coordinator's endpoint as if that were no table's name."""
    at_top = re.split(r"^[ \t]*\[", text, maxsplit=1, flags=re.MULTILINE)[0]
    return bool(
        re.search(r"^[ \t]*coordinator[ \t]*=", at_top, re.MULTILINE)
        and re.search(r"^[ \t]*\[[ \t]*coordinator[ \t]*\]", text, re.MULTILINE)
    )


def _options(command: click.Command) -> dict[str, Setting]:
    return {param.name: param for param in command.params if isinstance(param, Setting) and param.name}


def _unknown(path: Path, key: str, known: set[str], hint: str = "") -> ConfigurationError:
    close = difflib.get_close_matches(key.rpartition(".")[2].replace("-", "_"), sorted(known), n=1)
    hint = hint or (f"; did you mean {close[0].replace('_', '-')!r}?" if close else "")
    return ConfigurationError(f"{path}: unknown key {key!r}{hint}")
