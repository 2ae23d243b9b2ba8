"""The tensor lists that are moved: names and shapes of real models, and made-up extremes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def _batch_norm(name: str, planes: int) -> dict[str, Shape]:
    return {f"{name}.weight": (planes,), f"{name}.bias": (planes,)}


def _resnet50() -> dict[str, Shape]:
    """Return the trainable tensors of torchvision's ResNet-50 in the order of ``parameters()``."""
    shapes: dict[str, Shape] = {"conv1.weight": (64, 3, 7, 7), **_batch_norm("bn1", 64)}
    inputs = 64
    for layer, (planes, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            name, outputs = f"layer{layer}.{block}", 4 * planes
            shapes |= {f"{name}.conv1.weight": (planes, inputs, 1, 1), **_batch_norm(f"{name}.bn1", planes)}
            shapes |= {f"{name}.conv2.weight": (planes, planes, 3, 3), **_batch_norm(f"{name}.bn2", planes)}
            shapes |= {f"{name}.conv3.weight": (outputs, planes, 1, 1), **_batch_norm(f"{name}.bn3", outputs)}
            if block == 0:
                shapes[f"{name}.downsample.0.weight"] = (outputs, inputs, 1, 1)
                shapes |= _batch_norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    return shapes | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def _gpt2_small() -> dict[str, Shape]:
    """Return the tensors of GPT-2 with 12 layers of width 768 (the output layer shares the embedding)."""
    width = 768
    shapes: dict[str, Shape] = {"wte.weight": (50257, width), "wpe.weight": (1024, width)}
    for layer in range(12):
        for name, shape in {
            "ln_1": (width,),
            "attn.c_attn": (width, 3 * width),
            "attn.c_proj": (width, width),
            "ln_2": (width,),
            "mlp.c_fc": (width, 4 * width),
            "mlp.c_proj": (4 * width, width),
        }.items():
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[-1:]}
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


RESNET50: Shapes = _resnet50()
GPT2_SMALL: Shapes = _gpt2_small()
#: ResNet-50's bytes in one tensor: nothing to gather, everything to split.
ONE_GIANT: Shapes = {"w": (25_557_032,)}
#: The opposite: nothing but names and small pieces.
TINY_10000: Shapes = {f"w{i}": (16, 16) for i in range(10_000)}

NAMED: Mapping[str, Shapes] = {
    "resnet50": RESNET50,
    "gpt2-small": GPT2_SMALL,
    "one-giant": ONE_GIANT,
    "tiny-10000": TINY_10000,
}


def find(name: str) -> Shapes:
    """Return a named model, one vector of a size such as ``64KB`` (1 KB is 1024 bytes), or layers: ``32x256MB``.

    Raises
    ------
    ValueError
        There is no such model.
    """
    if name in NAMED:
        return NAMED[name]
    size = re.fullmatch(r"(?:(\d+)x)?(\d+)(KB|MB|GB)", name)
    if size is None or not int(size[2]) or not int(size[1] or 1):
        known = ", ".join(NAMED)
        raise ValueError(f"no model {name!r}; choose {known}, or a size from 1KB to 8GB, say 64KB or 32x256MB")
    shape = (int(size[2]) * UNITS[size[3]] // 4,)
    return {"w": shape} if size[1] is None else {f"w{number}": shape for number in range(int(size[1]))}


def num_elements(shapes: Shapes) -> int:
    """Return how many numbers a model has."""
    return sum(math.prod(shape) for shape in shapes.values())


def num_bytes(shapes: Shapes) -> int:
    """Return the size of a model in float32."""
    return 4 * num_elements(shapes)


def arrays(shapes: Shapes, scale: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Return float32 arrays of these shapes, each with memory of its own, as a framework keeps them."""
    noise = scale * np.random.default_rng(seed).standard_normal(1 << 16, dtype=np.float32)
    # of small tensors no more than is needed: np.resize would keep all of the noise for each
    return {name: np.resize(noise[: math.prod(shape)], shape) for name, shape in shapes.items()}
