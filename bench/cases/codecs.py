"""codecs: encoding and decoding alone, beside a memory copy and beside the time the saved bytes would take."""

from __future__ import annotations

import time
from pathlib import Path

import click
import numpy as np

from bench import models
from bench.limits import Copy
from bench.options import codec_option, json_option, model_option, report, steps_option
from bench.results import Row, timed
from bench.setup import GRADIENT_SCALE, WARM_UP
from bench.stats import Times
from zmqps import codecs
from zmqps.core.job.keyspace import SLICE_NBYTES

BACKENDS = ("numba", "numpy")
#: A codec has to pay on a slow network: 1 Gbit/s.
SLOW_BYTES_PER_S = 125e6


def measure(model: str, codec: str, kernels: codecs.Backend, steps: int) -> Row:
    """Encode and decode one gradient of the whole model, slice by slice, and copy memory, in turns."""
    size = models.num_elements(models.find(model))
    chosen = codecs.parse(codec)
    chosen.warm_up(np.float32, kernels)
    rng = np.random.default_rng(0)  # magnitudes as uneven as those of gradients: topk's work depends on it
    sample = rng.standard_normal(1 << 20) * np.exp(rng.standard_normal(1 << 20)) * GRADIENT_SCALE
    gradient = np.resize(sample.astype(np.float32), size)
    residual = np.zeros_like(gradient)
    parts = [slice(start, start + SLICE_NBYTES // 4) for start in range(0, size, SLICE_NBYTES // 4)]
    copy = Copy(gradient.nbytes)
    encoding: list[float] = []
    decoding: list[float] = []
    limits: list[float] = []
    for step in range(WARM_UP + steps):
        encode_s = decode_s = 0.0
        encoded_nbytes = 0
        for part in parts:
            values = gradient[part]
            rest = residual[part] if chosen.error_feedback else None
            started = time.perf_counter()
            blob = chosen.encode(values, rest, seed=step, backend=kernels)
            encoded_at = time.perf_counter()
            chosen.decode(blob, values.size, values.dtype, backend=kernels)
            decode_s += time.perf_counter() - encoded_at
            encode_s += encoded_at - started
            encoded_nbytes += blob.nbytes
        encoding.append(encode_s)
        decoding.append(decode_s)
        limits.append(copy.step())
    encode, decode = Times(tuple(encoding[WARM_UP:])), Times(tuple(decoding[WARM_UP:]))
    spent_s = encode.median + decode.median
    saved_s = (gradient.nbytes - encoded_nbytes) / SLOW_BYTES_PER_S
    return Row(
        case="codecs",
        model=model,
        codec=chosen.spec,
        kernels=kernels,
        **timed(encode, Times(tuple(limits[WARM_UP:])), gradient.nbytes),
        extra={
            "encode_gb_s": gradient.nbytes / encode.median / 1e9,
            "decode_gb_s": gradient.nbytes / decode.median / 1e9,
            "smaller_by": gradient.nbytes / encoded_nbytes,
            "saved_at_1gbit_s": saved_s,
            "cost_to_saving": spent_s / saved_s if saved_s else None,
            "verdict": _verdict(spent_s, saved_s),
        },
    )


def _verdict(spent_s: float, saved_s: float) -> str:
    """Say whether encoding and decoding cost less than what the saved bytes would take at 1 Gbit/s."""
    if saved_s <= 0:
        return "saves nothing"
    return f"{'pays' if spent_s < saved_s else 'does not pay'} at 1 Gbit/s"


@click.command("codecs")
@model_option("resnet50")
@codec_option("bf16")
@click.option("--kernels", type=click.Choice(BACKENDS), default="numba", show_default=True)
@steps_option
@json_option
def command(model: str, codec: str, kernels: codecs.Backend, steps: int, json_path: Path | None) -> None:
    """A codec alone, on one core, slice by slice as workers and servers call it.

    Times are those of encoding, GB/s count the bytes of the values. The limit is a memory copy of
    them. The verdict: whether encoding and decoding together take less than the saved bytes would on
    a network of 1 Gbit/s.
    """
    report(measure(model, codec, kernels, steps), json_path)
