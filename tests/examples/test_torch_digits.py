"""The training script for users of PyTorch: its length, and that it learns."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest

import zmqps

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "torch_digits.py"


def test_the_script_is_short_enough_to_copy() -> None:
    assert len(SCRIPT.read_text().splitlines()) < 80


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tensors_are_pushed_from_where_they_lie_and_the_model_learns(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from examples import torch_digits

    options = Namespace(device=device, passes=6, batch=32, mode="sync", codec="bf16")
    with zmqps.LocalCluster(zmqps.Servers(2, kernels="numpy"), workers=1) as cluster:
        torch_digits.train(zmqps.connect(cluster.address), options)
    found = re.search(r"test accuracy ([\d.]+)", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 0.85
