"""``zmqps follow``: a copy of a sparse table, for services that read it."""

from __future__ import annotations

import click

from zmqps.cli import settings
from zmqps.logs.handler import set_up_logging
from zmqps.settings.follower import FollowerSettings


@click.command()
@click.argument("table")
@settings.options_of(FollowerSettings)
def follow(told: FollowerSettings, table: str) -> int:
    """Copy a sparse table, and answer lookups.

    The copy of TABLE is in this process's memory and follows the table as it is trained. `zmqps.follow.connect`
    asks it for rows. It also answers while the cluster is away, and continues when that is back.
    """
    from zmqps.follow import process

    set_up_logging(told.name or told.role, level=told.log_level)
    return process.run(told, table)
