"""checkpoint: writing and reading what a server holds, beside one plain file of the same bytes."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from bench import models
from bench.options import json_option, model_option, optimizer_option, report, steps_option
from bench.results import Row, timed
from bench.setup import OPTIMIZERS
from bench.stats import Times
from zmqps.checkpoint import LocalStorage, Manifest, Save, ShardWriter, open_checkpoint
from zmqps.core.job.keyspace import SLICE_NBYTES, KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array

#: The files of the first pair, which find the disk's caches and the kernels cold.
WARM_UP = 1


class Subject:
    """A model with the slots of an optimizer, on one server, and a directory to save it in."""

    def __init__(self, model: str, optimizer: str, directory: str) -> None:
        spec = OPTIMIZERS[optimizer]()
        parameters = tuple(Parameter(name, shape, "float32") for name, shape in models.find(model).items())
        self.job = JobSpec(parameters=parameters, optimizer=spec.to_wire(), mode="async")
        self.slots = tuple(spec.rules(["w"])[0][0].slots)
        self.placement = Placement.balance(KeySpace(parameters), 1)
        noise = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
        size = self.placement.keyspace.tables[0].size
        self.arrays: list[Array] = [np.resize(noise, size) for _ in range(1 + len(self.slots))]
        self.nbytes = sum(array.nbytes for array in self.arrays)
        self.directory = directory

    def plain(self) -> float:
        """Write the bytes into one file, in order, and wait for the disk; return the seconds."""
        path = os.path.join(self.directory, "plain")
        started = time.perf_counter()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for array in self.arrays:
            rest = array.data.cast("B")
            while rest:
                rest = rest[os.write(fd, rest[:SLICE_NBYTES]) :]
        os.fsync(fd)
        os.close(fd)
        seconds = time.perf_counter() - started
        os.unlink(path)
        return seconds

    def save(self, version: int) -> float:
        """Save a checkpoint as a server and the coordinator do; return the seconds."""
        started = time.perf_counter()
        one = Save.begin(LocalStorage(), self.directory, "bench", version, "bench", time.time())
        with ShardWriter(LocalStorage(), one.directory, self.placement, 0, self.slots) as writer:
            for slice_ in self.placement.slices[0]:
                value, *slots = (array[slice_.start : slice_.stop] for array in self.arrays)
                writer.write(slice_.index, value, slots, version=version)
            facts = tuple(writer.close())
        manifest = Manifest(
            job_name="bench",
            job=self.job,
            placement=self.placement,
            version=version,
            slots=self.slots,
            shards=(facts,),
            created_at=time.time(),
        )
        one.commit(manifest)
        return time.perf_counter() - started

    def restore(self) -> float:
        """Read the latest one as two servers would, all of it checked; return the seconds."""
        started = time.perf_counter()
        restorer = open_checkpoint(self.directory).onto(self.job.parameters, self.slots)
        for slices in Placement.balance(self.placement.keyspace, 2).slices:
            for slice_ in slices:
                restorer.read(slice_, np.dtype("<f4"))
        return time.perf_counter() - started


def measure(model: str, optimizer: str, steps: int, directory: str) -> Row:
    """Write the plain file and a checkpoint, and read it, in turns."""
    subject = Subject(model, optimizer, directory)
    plain, saves, restores = [], [], []
    for version in range(1, WARM_UP + steps + 1):
        plain.append(subject.plain())
        saves.append(subject.save(version))
        restores.append(subject.restore())
        for old in Path(directory, "bench").iterdir():
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
    times, limit = Times(tuple(saves[WARM_UP:])), Times(tuple(plain[WARM_UP:]))
    return Row(
        case="checkpoint",
        model=model,
        optimizer=optimizer,
        **timed(times, limit, subject.nbytes),
        extra={
            "of_a_plain_writer": limit.median / times.median,
            "restore_gb_s": subject.nbytes / Times(tuple(restores[WARM_UP:])).median / 1e9,
        },
    )


@click.command("checkpoint")
@model_option("resnet50")
@optimizer_option
@click.option("--directory", type=click.Path(file_okay=False), help="On the disk in question.  [default: runs]")
@steps_option
@json_option
def command(model: str, optimizer: str, directory: str | None, steps: int, json_path: Path | None) -> None:
    """Writing a checkpoint of one server, beside one plain writer with fsync.

    The limit writes the same bytes into one file, in order. ``of_a_plain_writer`` is the share of its speed;
    ``restore_gb_s`` is how fast the checkpoint is read onto two servers, with every checksum, out of the page cache.
    """
    Path(directory or "runs").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory or "runs") as place:
        report(measure(model, optimizer, steps, place), json_path)
