"""``zmqps checkpoint``: what has been saved, whether it is whole, and what else can be made of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqps.cli import settings
from zmqps.cli.look import coordinator, reach, shown_keys
from zmqps.cli.settings import setting
from zmqps.core.protocol import exits

if TYPE_CHECKING:
    from zmqps.checkpoint import Checkpoint, Storage
    from zmqps.errors import CheckpointError

job_option = setting("--job", shared=False, help="Job to read, if PATH holds several.")


@click.group(invoke_without_command=True)
@coordinator
@setting("--job", shared=False, default="default", help="Which job to save.")
@setting(
    "--consistent", is_flag=True, shared=False, help="Asynchronous jobs: a consistent snapshot; workers pause for it."
)
@settings.job_secret
@shown_keys
@settings.directory
@setting("--timeout", shared=False, type=click.FloatRange(min=0, min_open=True), default=600.0, help="Seconds to wait.")
@click.pass_context
def checkpoint(
    ctx: click.Context,
    coordinator: str | None,
    job: str,
    consistent: bool,
    job_secret: Path | None,
    keys: Path | None,
    directory: Path,
    timeout: float,
) -> int:
    """Save, show, check and export checkpoints.

    \b
    zmqps checkpoint               save the job "default" to the cluster's place
    zmqps checkpoint show PATH     what is in a checkpoint or a directory of them
    zmqps checkpoint verify PATH   compare every byte with its checksum
    """
    if ctx.invoked_subcommand is not None:
        return exits.OK
    from zmqps.errors import num_bytes
    from zmqps.nodes.inquiry import save_job

    address, shown = reach(coordinator, keys, directory)
    made = save_job(address, job, consistent=consistent, timeout=timeout, job_secret=job_secret, keys=shown)
    click.echo(f"{made.path}: version {made.version}, {num_bytes(made.nbytes)} in {made.seconds:.2f} s")
    return exits.OK


@checkpoint.command()
@click.argument("path", metavar="PATH")
@job_option
def show(path: str, job: str | None) -> int:
    """Show what is in a checkpoint, or in a directory of them.

    PATH is a checkpoint, or a directory of checkpoints; or an address for fsspec, such as s3://bucket/run-7.
    """
    from zmqps.checkpoint import storage_of
    from zmqps.cli.tables import checkpoint_table, checkpoints_table, new_console
    from zmqps.errors import CheckpointError

    storage, place = storage_of(path)
    console = new_console()
    found = _all(storage, place, job)
    if len(found) > 1:
        console.print(checkpoints_table(found))
    for _, one in reversed(found):
        if not isinstance(one, CheckpointError):
            console.print(checkpoint_table(one))
            return exits.OK
    _, error = found[-1]
    assert isinstance(error, CheckpointError)
    raise error.again()


@checkpoint.command()
@click.argument("path", metavar="PATH")
@job_option
def verify(path: str, job: str | None) -> int:
    """Compare every byte of checkpoints with its checksum.

    PATH is a checkpoint, or a directory of checkpoints.
    """
    from zmqps.checkpoint import storage_of, with_advice
    from zmqps.errors import CheckpointError, counted, num_bytes

    storage, place = storage_of(path)
    num_bad = 0
    for where, one in _all(storage, place, job):
        try:
            if isinstance(one, CheckpointError):
                raise one.again()
            nbytes = sum(one.verify())
        except CheckpointError as error:
            num_bad += 1
            click.echo(f"zmqps: {with_advice(storage, where, error)}", err=True)
        else:
            files = counted(len(one.manifest.files), "file")
            click.echo(f"{where} is whole: version {one.version}, {num_bytes(nbytes)} in {files}")
    return exits.FAILED if num_bad else exits.OK


@checkpoint.command()
@click.argument("path", metavar="PATH")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@job_option
@click.option("--optimizer", is_flag=True, help="Also the optimizer's slots, as optimizer.<slot>.<name>.")
@click.option("--table", help="Only the rows of this sparse table.")
@click.option(
    "--format", type=click.Choice(["safetensors", "parquet", "arrow"]), help="By default, from FILE's extension."
)
@click.option("--torch", is_flag=True, help="A PyTorch state_dict; the default if FILE ends in .pt or .pth.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def export(
    path: str, file: str, job: str | None, optimizer: bool, table: str | None, format: str | None, torch: bool,
    force: bool,
) -> int:  # fmt: skip
    """Write the values of a checkpoint into one safetensors file.

    Or, with --torch, into a file that torch.load reads (model.pt): the state_dict of the model, buffers included.
    Or the rows of a sparse table into a Parquet or Arrow file (items.parquet); with --table also into a safetensors
    file.
    """
    from zmqps.checkpoint import export, export_table, export_torch, open_checkpoint, with_advice
    from zmqps.checkpoint.table_file import is_for_tables
    from zmqps.checkpoint.torch_state import ENDINGS
    from zmqps.errors import CheckpointCorruptError, ConfigurationError, counted, num_bytes

    of_table = table is not None or (not torch and is_for_tables(file, format))
    of_torch = torch or (not of_table and format is None and file.endswith(ENDINGS))
    if of_torch and (of_table or optimizer or format is not None):
        raise ConfigurationError("a state_dict has parameters and buffers: leave out --table, --optimizer and --format")
    one = open_checkpoint(path, job)
    try:
        if of_table:
            if optimizer:
                raise ConfigurationError("the optimizer's slots of a sparse table stay in the checkpoint")
            written = counted(export_table(one, file, table, format=format, replace=force), "row")
        elif of_torch:
            written = num_bytes(export_torch(one, file, replace=force))
        else:
            written = num_bytes(export(one, file, optimizer=optimizer, replace=force))
    except CheckpointCorruptError as error:
        raise with_advice(one.storage, one.path, error) from error
    click.echo(f"wrote {file}: version {one.version} of {one.path}, {written}")
    return exits.OK


@checkpoint.command()
@click.argument("path", metavar="PATH")
@job_option
def compact(path: str, job: str | None) -> int:
    """Write a chain of checkpoints as one whole checkpoint.

    It is the latest of its job then. Not while a cluster saves there: what is saved meanwhile would be taken for an
    earlier one.
    """
    import secrets
    import time

    from zmqps.checkpoint import compact, job_directory, open_checkpoint, with_advice
    from zmqps.errors import CheckpointCorruptError, ConfigurationError

    one = open_checkpoint(path, job)
    if one.base is None:
        click.echo(f"{one.path} builds upon no other")
        return exits.OK
    job_path, job_name = one.path.rpartition("/")[0], one.manifest.job_name
    directory = job_path.rpartition("/")[0]
    if job_directory(directory, job_name) != job_path:  # a checkpoint that was copied elsewhere
        raise ConfigurationError(f"{job_path} is not a directory of checkpoints of the job {job_name!r}, by its name")
    try:
        whole = compact(one, directory, secrets.token_hex(8), time.time())
    except CheckpointCorruptError as error:
        raise with_advice(one.storage, one.path, error) from error
    click.echo(f"wrote {whole}: version {one.version} of {one.path}")
    return exits.OK


@checkpoint.command()
@click.argument("path", metavar="PATH")
@job_option
@click.option("--keep", type=click.IntRange(1), required=True, help="How many of the latest to keep.")
def prune(path: str, job: str | None, keep: int) -> int:
    """Remove all but the latest checkpoints of a job.

    Whichever cluster made them. What these build upon stays; what dead saves have left goes.
    """
    import time

    from zmqps.checkpoint import clean, find_job, good_ones, prune, storage_of
    from zmqps.errors import counted

    storage, place = storage_of(path)
    job_path = find_job(storage, place.rstrip("/"), job)
    good = [one.path for one in good_ones(storage, job_path)]
    removed = prune(storage, job_path, keep, good) + clean(storage, job_path, "", time.time())
    for where in removed:
        click.echo(f"removed {where}")
    kept = [where for where in good if where not in removed]
    click.echo(f"{counted(len(kept), 'checkpoint')} left, the latest {kept[0]}" if kept else "nothing is left")
    return exits.OK


def _all(storage: Storage, path: str, job: str | None) -> list[tuple[str, Checkpoint | CheckpointError]]:
    """Return the checkpoint that a path names, or all of a job, the latest last, with what is wrong with each."""
    from zmqps.checkpoint import entries, find_job, look
    from zmqps.checkpoint.find import is_checkpoint
    from zmqps.errors import CheckpointError

    path = path.rstrip("/") or "/"
    if is_checkpoint(storage, path):
        paths = [path]
    else:
        paths = [entry.path for entry in entries(storage, find_job(storage, path, job))]
    found: list[tuple[str, Checkpoint | CheckpointError]] = []
    for where in paths:
        try:
            found.append((where, look(storage, where)))
        except CheckpointError as error:
            found.append((where, error))
    return found
