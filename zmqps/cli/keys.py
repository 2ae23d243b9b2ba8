"""``zmqps keys``: the keys of a cluster that other hosts can reach."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from zmqps.cli.settings import setting
from zmqps.core.protocol import exits

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A number of seconds: 90, 15min, 12h, 30d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
        if match is None or (match[2] or "s") not in UNITS:
            self.fail(f"{value!r} is not a duration; write 90, 15min, 12h or 30d", param, ctx)
        return float(match[1]) * UNITS[match[2] or "s"]


directory = setting(
    "--keys", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", required=True,
    help="The directory that `zmqps keys create` has made.",
)  # fmt: skip


@click.group(invoke_without_command=True)
@click.pass_context
def keys(ctx: click.Context) -> int:
    """Make, show and revoke a cluster's keys.

    A cluster that other hosts can reach needs them.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return exits.OK


@keys.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
def create(folder: Path) -> int:
    """Make the keys of a new cluster in the directory DIR.

    Every host with a coordinator or server needs all of it; workers take a token of `zmqps keys token`.
    """
    from zmqps.keys import create

    create(folder)
    click.echo(f"made {folder}: keys for nodes, workers and observers, for your eyes only")
    click.echo(f"next: zmqps coordinator --address tcp://HOST:5570 --keys {folder}")
    click.echo(f"      zmqps keys token --keys {folder} --address tcp://HOST:5570")
    return exits.OK


@keys.command()
@directory
@setting(
    "--role",
    type=click.Choice(("worker", "observer", "node")),
    default="worker",
    shared=False,
    help="What it may join as.",
)
@setting("--address", shared=False, default="", help="The coordinator's endpoint, to put into the token.")
@setting("--name", shared=False, help="Name of the key, used in logs and to revoke it.", show_default="worker-1, …")
@setting("--lasts", shared=False, type=Duration(), help="How long it is valid, such as 12h.", show_default="for good")
def token(keys: Path, role: str, address: str, name: str | None, lasts: float | None) -> int:
    """Make a key, and print it as one string (a token).

    A process needs nothing else to join: give it the token as ZMQPS_TOKEN, or in zmqps.Security(token=…). Keep it like
    a password.
    """
    from zmqps.keys import token

    click.echo(token(keys, role, address, name=name, lasts=lasts))
    return exits.OK


@keys.command("list")
@directory
def list_(keys: Path) -> int:
    """Show the keys that the cluster accepts, and those revoked."""
    from zmqps.cli.tables import keys_table, new_console
    from zmqps.keys import entries

    new_console().print(keys_table(entries(keys), time.time()))
    return exits.OK


@keys.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@directory
def revoke(names: tuple[str, ...], keys: Path) -> int:
    """Revoke the keys of these names.

    Open connections end within a second. Run it on the coordinator's host: a member that it refuses is refused by all
    servers.
    """
    from zmqps.keys import revoke

    for entry in revoke(keys, names):
        click.echo(f"revoked {entry.holder} ({entry.public[:8]}…)")
    return exits.OK


@keys.command()
@click.argument("roles", nargs=-1, type=click.Choice(("node", "worker", "observer")), metavar="[ROLE]...")
@directory
@setting("--grace", shared=False, type=Duration(), default="1h", help="How long the old keys stay valid.")
def rotate(roles: tuple[str, ...], keys: Path, grace: float) -> int:
    """Make new keys for roles, by default for all three.

    No restart is needed. Copy the directory to the other hosts before the old keys end. Tokens have keys of
    their own: revoke those, and make new ones.
    """
    from zmqps.core.protocol.security.roles import KEY_ROLES
    from zmqps.keys import rotate

    for role, pair in rotate(keys, roles or KEY_ROLES, grace=grace).items():
        click.echo(f"made a new {role}'s key ({pair.public[:8]}…); the old one opens for another {grace:g} s")
    return exits.OK
