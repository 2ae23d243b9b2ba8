"""The tensor lists are those of the real models."""

from __future__ import annotations

import numpy as np
import pytest

from bench import models
from tests.tables import for_each


@for_each(
    "name, tensors, elements",
    [
        ("resnet50", 161, 25_557_032),
        ("gpt2-small", 148, 124_439_808),
        ("one-giant", 1, 25_557_032),
        ("tiny-10000", 10_000, 2_560_000),
        ("1KB", 1, 256),
        ("1GB", 1, 1 << 28),
        ("32x1MB", 32, 32 << 18),
    ],
)
def test_a_model_has_its_tensors_and_elements(name: str, tensors: int, elements: int) -> None:
    shapes = models.find(name)
    assert len(shapes) == tensors
    assert models.num_elements(shapes) == elements
    assert models.num_bytes(shapes) == 4 * elements


def test_resnet50_is_named_as_torchvision_names_it() -> None:
    assert list(models.RESNET50)[:3] == ["conv1.weight", "bn1.weight", "bn1.bias"]
    assert models.RESNET50["layer4.0.downsample.0.weight"] == (2048, 1024, 1, 1)
    assert list(models.RESNET50)[-1] == "fc.bias"


@for_each("name", ["", "0KB", "12", "1kb", "resnet18", "0x1KB", "x1KB"])
def test_an_unknown_model_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ValueError, match="choose resnet50"):
        models.find(name)


def test_arrays_have_memory_of_their_own() -> None:
    arrays = models.arrays(models.RESNET50, 1.0)
    assert {name: array.shape for name, array in arrays.items()} == models.RESNET50
    assert all(array.dtype == np.float32 for array in arrays.values())
    assert not np.shares_memory(arrays["bn1.weight"], arrays["bn1.bias"])
