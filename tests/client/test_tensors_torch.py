"""Tensors of PyTorch on the processor: read, filled in place, in its dtypes. Skipped where it is not installed."""

from __future__ import annotations

import numpy as np
import pytest

from zmqps.client.requests import Requests
from zmqps.client.tensors import MEMORY_NBYTES, describe
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.worker.operations import Attached
from zmqps.errors import ConfigurationError, ShapeError
from zmqps.gpu.handover import Handover
from zmqps.optim import sgd

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_models_tensors_are_described_pushed_and_filled(dtype: str, device: str) -> None:
    layer = torch.nn.Linear(3, 2).to(getattr(torch, dtype)).to(device)
    params = dict(layer.named_parameters())
    parameters, flat = describe(params, Handover())
    assert [(p.name, p.shape, p.dtype) for p in parameters] == [("weight", (2, 3), dtype), ("bias", (2,), dtype)]
    np.testing.assert_array_equal(flat[0], layer.weight.detach().float().cpu().numpy().reshape(-1))
    asked = Requests(
        Attached(
            JobSpec(parameters=parameters, optimizer=sgd(1.0).to_wire(), mode="async"),
            Placement.balance(KeySpace(parameters), 1, 64),
        ),
        Handover(),
    )

    layer(torch.ones(1, 3, dtype=getattr(torch, dtype), device=device)).sum().backward()
    transfer = asked.push({name: p.grad for name, p in params.items()}, 1, None)[0]
    assert [array.tolist() for array in transfer.source.arrays] == [[1.0] * 6, [1.0] * 2]  # type: ignore[union-attr]

    transfer, result = asked.pull(None, params, None, None, None)
    assert transfer.target.arrays
    for number, array in enumerate(transfer.target.arrays):
        assert array is not None
        array[:] = number + 1 / 3
    assert result(None)["weight"] is layer.weight
    assert layer.weight.dtype == getattr(torch, dtype)
    assert torch.equal(layer.bias.float().cpu(), torch.full((2,), 4 / 3).to(getattr(torch, dtype)).float())
    assert torch.equal(layer.weight.float().cpu(), torch.full((2, 3), 1 / 3).to(getattr(torch, dtype)).float())


def test_a_bfloat16_tensor_of_another_shape_is_refused() -> None:
    parameters, _ = describe({"w": torch.zeros(3, dtype=torch.bfloat16)}, Handover())
    asked = Requests(
        Attached(
            JobSpec(parameters=parameters, optimizer=sgd(1.0).to_wire(), mode="async"),
            Placement.balance(KeySpace(parameters), 1, 64),
        ),
        Handover(),
    )
    with pytest.raises(ShapeError, match=r"\(4,\)"):
        asked.pull(None, {"w": torch.zeros(4, dtype=torch.bfloat16)}, None, None, None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tensor_that_is_larger_than_all_memory_once_expanded_is_refused_before_it_is_copied(dtype: str) -> None:
    value = torch.zeros(1, dtype=getattr(torch, dtype)).expand(MEMORY_NBYTES, 1)
    with pytest.raises(ConfigurationError, match=r"the array 'w' of shape .* check its shape, or keep rows"):
        describe({"w": value}, Handover())
