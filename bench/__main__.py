"""``python -m bench``."""

from __future__ import annotations

import click

from bench.cases import pull, push, push_pull


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure zmqps beside what this machine can do at best."""


for case in (push, pull, push_pull):
    main.add_command(case.command)

if __name__ == "__main__":
    main(prog_name="python -m bench")
