"""codecs: encoding and decoding alone, beside a memory copy, and on which wires that costs less than it saves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import models
from bench.limits import Copy
from bench.options import codec_option, json_option, model_option, report, steps_option
from bench.results import Row, timed, write_rows
from bench.setup import GRADIENT_SCALE, WARM_UP
from bench.stats import Times
from bench.tables import print_rows
from zmqps import codecs
from zmqps.client.beside import TwoThreads
from zmqps.core.job.keyspace import SLICE_NBYTES

BACKENDS = ("numba", "numpy")
#: A codec has to pay on a slow network: 1 Gbit/s.
SLOW_BYTES_PER_S = 125e6
#: Elements by which the gradients of one step and the next are shifted: what they leave out falls on other values.
SHIFT = 1009


def measure(model: str, codec: str, kernels: codecs.Backend, steps: int) -> Row:
    """Encode with one thread and with two, decode, and copy memory, in turns: a whole model's gradient, in slices."""
    size = models.num_elements(models.find(model))
    chosen = codecs.parse(codec)
    chosen.warm_up(np.float32, kernels)
    rng = np.random.default_rng(0)  # magnitudes as uneven as those of gradients: topk's work depends on it
    sample = rng.standard_normal(1 << 20) * np.exp(rng.standard_normal(1 << 20)) * GRADIENT_SCALE
    gradient = np.resize(sample.astype(np.float32), size + SHIFT * (WARM_UP + steps))
    spreads: tuple[codecs.Spread, ...] = (codecs.ALONE, TwoThreads())
    residuals = [np.zeros(size, np.float32) for _ in spreads]
    parts = [slice(start, min(start + SLICE_NBYTES // 4, size)) for start in range(0, size, SLICE_NBYTES // 4)]
    nbytes = 4 * size
    copy = Copy(nbytes)
    encoding: tuple[list[float], ...] = ([], [])
    decoding: list[float] = []
    limits: list[float] = []
    for step in range(WARM_UP + steps):
        values = gradient[SHIFT * step :]
        blobs: list[np.ndarray[Any, Any]] = []
        for spread, residual, times in zip(spreads, residuals, encoding, strict=True):
            blobs.clear()
            started = time.perf_counter()
            for part in parts:
                rest = residual[part] if chosen.error_feedback else None
                blobs.append(chosen.encode(values[part], rest, seed=step, backend=kernels, spread=spread))
            times.append(time.perf_counter() - started)
        started = time.perf_counter()
        for part, blob in zip(parts, blobs, strict=True):
            chosen.decode(blob, part.stop - part.start, np.float32, backend=kernels)
        decode_s = time.perf_counter() - started
        encoded_nbytes = sum(blob.nbytes for blob in blobs)
        decoding.append(decode_s)
        limits.append(copy.step())
    alone, encode, decode = (Times(tuple(times[WARM_UP:])) for times in (*encoding, decoding))
    spent_s = encode.median + decode.median
    saved_nbytes = nbytes - encoded_nbytes
    saved_s = saved_nbytes / SLOW_BYTES_PER_S
    return Row(
        case="codecs",
        model=model,
        codec=chosen.spec,
        kernels=kernels,
        **timed(encode, Times(tuple(limits[WARM_UP:])), nbytes),
        extra={
            "encode_gb_s": nbytes / encode.median / 1e9,
            "encode_one_thread_gb_s": nbytes / alone.median / 1e9,
            "decode_gb_s": nbytes / decode.median / 1e9,
            "smaller_by": nbytes / encoded_nbytes,
            "saved_at_1gbit_s": saved_s,
            "cost_to_saving": spent_s / saved_s if saved_s else None,
            "pays_below_gbit_s": saved_nbytes * 8e-9 / spent_s if saved_nbytes > 0 else None,
            "verdict": _verdict(spent_s, saved_nbytes),
        },
    )


def _verdict(spent_s: float, saved_nbytes: int) -> str:
    """Say on which wires encoding and decoding cost less than what the saved bytes would take."""
    if saved_nbytes <= 0:
        return "saves nothing"
    return f"pays on wires below {saved_nbytes * 8e-9 / spent_s:.1f} Gbit/s"


def quickest(rows: list[Row], gbit_s: float) -> str:
    """Say in which codec values are at their server first, over a wire of so many Gbit/s; raw needs no encoding."""

    def takes(row: Row) -> float:
        """Seconds of 10⁹ bytes of values."""
        spent_s = 0.0 if row.codec == "raw" else 1.0 / row.extra["encode_gb_s"] + 1.0 / row.extra["decode_gb_s"]
        return spent_s + float(8.0 / gbit_s / row.extra["smaller_by"])

    times = {row.codec: takes(row) for row in sorted(rows, key=takes)}
    listed = ", ".join(f"{codec} {seconds:.3g} s" for codec, seconds in times.items())
    return f"on a wire of {gbit_s:g} Gbit/s {next(iter(times))} pays most; for each GB of values: {listed}"


@click.command("codecs")
@model_option("resnet50")
@codec_option("bf16")
@click.option("--kernels", type=click.Choice(BACKENDS), default="numba", show_default=True)
@click.option(
    "--wire",
    type=click.FloatRange(0.0, min_open=True),
    metavar="GBIT",
    help="Measure all codecs in place of one, and tell which pays on a wire of so many Gbit/s.",
)
@steps_option
@json_option
def command(
    model: str, codec: str, kernels: codecs.Backend, wire: float | None, steps: int, json_path: Path | None
) -> None:
    """A codec alone, slice by slice as workers and servers call it.

    Times are those of encoding as workers do, with two threads; with one it is shown beside. Servers decode with one.
    GB/s count the bytes of the values. The limit is a memory copy of them. The verdict: on which wires encoding and
    decoding together take less time than the saved bytes would.
    """
    if wire is None:
        report(measure(model, codec, kernels, steps), json_path)
        return
    rows = [measure(model, name, kernels, steps) for name in codecs.CODECS]
    print_rows(rows)
    click.echo(quickest(rows, wire))
    if json_path is not None:
        write_rows(json_path, rows)
