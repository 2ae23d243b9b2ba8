"""A checkpoint becomes a file that PyTorch reads as a model's state."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.saved import Model, job, save
from zmqps.checkpoint.find import open_checkpoint
from zmqps.checkpoint.storage import LocalStorage
from zmqps.checkpoint.torch_state import export_torch
from zmqps.cli.main import run
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError
from zmqps.extras import advice

SPEC = job(
    Parameter("0.weight", (4, 3), "float32"),
    Parameter("0.bias", (4,), "float16"),
    Parameter("1.scale", (), "bfloat16"),
    Parameter("1.running_mean", (3,), "float64", buffer=True),
    Parameter("1.num_batches_tracked", (), "int64", buffer=True),
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return save(LocalStorage(), str(tmp_path), Model.random(SPEC), Placement.balance(KeySpace(SPEC.parameters), 2))


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fake(name: str, *rest: Any, **options: Any) -> Any:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", fake)


@pytest.mark.parametrize("told", [["--torch"], []], ids=["said", "by its name"])
def test_names_shapes_and_dtypes_are_those_of_the_model(path: str, tmp_path: Path, told: list[str]) -> None:
    torch = pytest.importorskip("torch")
    assert run(["checkpoint", "export", *told, path, str(tmp_path / "model.pt")]) == exits.OK
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    saved = open_checkpoint(path).arrays()
    assert {name: (tuple(t.shape), str(t.dtype)) for name, t in state.items()} == {
        p.name: (p.shape, f"torch.{p.dtype}") for p in SPEC.parameters
    }
    for name, tensor in state.items():
        np.testing.assert_allclose(tensor.double().numpy(), saved[name].astype(float), rtol=1e-2)
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(path: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "model.pth"
    file.write_text("mine")
    with pytest.raises(ConfigurationError, match="is there already"):
        export_torch(open_checkpoint(path), str(file))
    assert export_torch(open_checkpoint(path), str(file), replace=True) == file.stat().st_size


def test_without_pytorch_it_is_said_what_to_install(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_torch(monkeypatch)
    assert run(["checkpoint", "export", "--torch", path, str(tmp_path / "model")]) == exits.USAGE
    assert f"{advice('torch')} [Z002]" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_what_a_state_dict_does_not_have_is_refused(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--optimizer"], ["--format", "safetensors"], ["--table", "items"]):
        assert run(["checkpoint", "export", "--torch", *option, path, str(tmp_path / "model.pt")]) == exits.USAGE
        assert "a state_dict has parameters and buffers" in capsys.readouterr().err
