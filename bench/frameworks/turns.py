"""Compare with another checkout: ``python -m bench.frameworks.turns --before DIR``, both measured in turns."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click

HERE = Path(__file__).resolve().parent
#: The scripts whose steps zmqps does.
ROWS = ("synchronous", "overlapped")
CODE = """
import sys
from bench.frameworks.__main__ import run
script, task, steps, folder = sys.argv[1:]
print(sum(run(script, task, "float32", int(steps), f"{folder}/timed", 1)))
"""


def timed(checkout: Path, row: str, task: str, steps: int, folder: str) -> float:
    """Return the seconds of a step of a script, both workers' added, with the zmqps of a checkout."""
    command = [sys.executable, "-c", CODE, row, task, str(steps), folder]
    done = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True, timeout=600)
    return float(done.stdout.split()[-1])


@click.command()
@click.option("--before", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", default=8, show_default=True, help="Turns of each script, with both.")
@click.option("--steps", default=60, show_default=True, help="Of each turn.")
@click.option("--task", "tasks", multiple=True, default=["gpt-8", "gpt-2", "cnn-64"], help="A model and its batch.")
def main(before: Path, rounds: int, steps: int, tasks: tuple[str, ...]) -> None:
    """Print the time of a step beside that of an earlier checkout, whose bench/frameworks this one's replaces."""
    shutil.copytree(HERE, before / "bench/frameworks", dirs_exist_ok=True)
    print("| task | script | before, ms | now, ms | ratio, and quartiles |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            for row in ROWS:
                times: dict[Path, list[float]] = {before.resolve(): [], HERE.parents[1]: []}
                for number in range(rounds):
                    for checkout in list(times) if number % 2 else reversed(times):
                        times[checkout].append(timed(checkout, row, task, steps, folder))
                old, new = times.values()
                low, middle, high = statistics.quantiles([b / a for a, b in zip(old, new, strict=True)], n=4)
                took = " | ".join(f"{1e3 * statistics.median(each) / 2:.2f}" for each in (old, new))
                print(f"| {task} | {row} | {took} | {middle:.3f} ({low:.3f} to {high:.3f}) |", flush=True)


if __name__ == "__main__":
    main()
