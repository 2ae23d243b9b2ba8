"""``zmqps``: the group of commands, the configuration file, and errors as one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from zmqps import __version__
from zmqps.cli.checkpoint import checkpoint
from zmqps.cli.doctor import doctor
from zmqps.cli.explain import explain, give_help
from zmqps.cli.follow import follow
from zmqps.cli.health import health, stack
from zmqps.cli.keys import keys
from zmqps.cli.launch import agent, launch
from zmqps.cli.logs import logs
from zmqps.cli.look import jobs, placement, status
from zmqps.cli.nodes import coordinator, server
from zmqps.cli.resize import drain, scale
from zmqps.cli.run import run as run_task
from zmqps.cli.running.output import open_streams
from zmqps.cli.settings import read_config
from zmqps.cli.top import top
from zmqps.cli.trace import trace
from zmqps.cli.up import down, up
from zmqps.core.protocol import exits
from zmqps.errors import AddressInUseError, ConfigurationError, DeadlineError, PSError
from zmqps.net.system.signals import heed_children

EXIT_CODES: tuple[tuple[type[PSError], int], ...] = (
    (ConfigurationError, exits.USAGE),
    (AddressInUseError, exits.ADDRESS_IN_USE),
    (DeadlineError, exits.COORDINATOR_LOST),
)

#: The commands as `zmqps --help` shows them.
SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Run": (up, launch, run_task, down, doctor),
    "Watch": (status, top, jobs, placement, health, stack, logs, trace, explain),
    "Change": (scale, drain),
    "Files": (checkpoint, keys),
    "Nodes": (coordinator, server, agent, follow),
}


class Sections(click.Group):
    """A group that lists its commands by purpose."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, their commands in the order of the table."""
        shown = {title: [one for one in found if not one.hidden] for title, found in SECTIONS.items()}
        column = max(len(str(one.name)) for found in shown.values() for one in found)
        limit = formatter.width - column - 4  # an indent and a gap of two columns each
        for title, found in shown.items():
            with formatter.section(title):
                rows = [(str(one.name).ljust(column), one.get_short_help_str(limit)) for one in found]
                formatter.write_dl(rows)


@click.group(cls=Sections, context_settings={"auto_envvar_prefix": "ZMQPS", "help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file with options: shared ones at its top, those of a command in [command].  [env: ZMQPS_CONFIG]",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """A parameter server over ZeroMQ.

    Every option can also be set by ZMQPS_<COMMAND>_<OPTION> or ZMQPS_<OPTION> in the environment,
    or in the file that --config names; flags win over the environment, and that over the file.
    """
    if config is not None:
        ctx.default_map = read_config(config, cli)


for commands in SECTIONS.values():
    for command in commands:
        cli.add_command(command)
give_help(cli)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code. Errors become one line on standard error."""
    heed_children()
    try:
        result = cli.main(arguments, prog_name="zmqps", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return exits.USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return exits.INTERRUPTED
    except BrokenPipeError:  # `zmqps logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter would flush into it
        return exits.FAILED
    except (PSError, OSError) as error:
        _say(error)
        return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), exits.FAILED)
    return result if isinstance(result, int) else exits.OK


def _say(error: PSError | OSError) -> None:
    """Say what went wrong, with its number where there is more to say; where to read that, if a person looks on."""
    number = error.number if isinstance(error, PSError) and error.code != PSError.code else ""
    click.echo(f"zmqps: {error} [{number}]" if number else f"zmqps: {error}", err=True)
    if number and sys.stderr.isatty():
        click.echo(f"zmqps explain {number} says what to do next", err=True)


def main() -> None:
    """Run ``zmqps`` with this process's arguments."""
    open_streams()
    sys.exit(run())
