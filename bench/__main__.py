"""``python -m bench``."""

from __future__ import annotations

import click

from bench import compare, suite
from bench.cases import (
    apply,
    checkpoint,
    codecs,
    combine,
    copies,
    core,
    crowd,
    cycles,
    day,
    deadline,
    fairness,
    following,
    growing,
    hostile,
    lan,
    latency,
    log,
    lookups,
    members,
    memory,
    pull,
    push,
    push_pull,
    refill,
    resizing,
    saving,
    sparse,
    standstill,
    sync_step,
    walk,
    watching,
)
from bench.gate import command as gate
from bench.peers import command as peers
from bench.scale import command as scale


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Measure zmqps beside what this machine can do at best in the same run.

    Times on a busy machine are noisy. Read the ratios: what is compared took turns, so the same
    noise met both sides.
    """


cases = (
    *(push, pull, push_pull, sync_step, latency, fairness, apply, codecs, core, walk, cycles, memory, members, crowd),
    *(
        checkpoint,
        saving,
        copies,
        refill,
        sparse,
        lookups,
        following,
        growing,
        hostile,
        lan,
        combine,
        log,
        day,
        deadline,
        watching,
        standstill,
    ),
)
for command in (
    *(module.command for module in (*cases, suite, compare, peers, gate, scale)),
    resizing.drain,
    resizing.rescale,
):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="python -m bench")
