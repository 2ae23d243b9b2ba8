"""A PyTorch optimizer goes on from a checkpoint as the servers would have, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.saved import NOW, Model, job, save
from zmqps import optim
from zmqps.checkpoint.find import open_checkpoint
from zmqps.checkpoint.storage import LocalStorage
from zmqps.checkpoint.torch_state import TWINS, from_torch, torch_state
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.errors import CheckpointMismatchError, OptimizerError
from zmqps.optim import OptimizerSpec, make_kernel

torch = pytest.importorskip("torch")

SHAPES = {"w": (4, 3), "b": (3,), "s": ()}
PARAMETERS = tuple(Parameter(name, shape, "float64") for name, shape in SHAPES.items())
CASES: dict[str, tuple[OptimizerSpec, Callable[[Any], Any]]] = {
    "sgd": (optim.sgd(0.1, weight_decay=0.01), lambda ps: torch.optim.SGD(ps, 0.1, weight_decay=0.01)),
    "momentum": (
        optim.sgd(0.1, momentum=0.9, dampening=0.5),
        lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, dampening=0.5),
    ),
    "nesterov": (
        optim.sgd(0.1, momentum=0.9, nesterov=True),
        lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (optim.adam(0.1, weight_decay=0.1), lambda ps: torch.optim.Adam(ps, 0.1, weight_decay=0.1)),
    "adamw": (optim.adamw(0.1), lambda ps: torch.optim.AdamW(ps, 0.1)),
    "amsgrad": (optim.amsgrad(0.1), lambda ps: torch.optim.Adam(ps, 0.1, amsgrad=True)),
    "amsgrad, decoupled": (
        optim.amsgrad(0.1, weight_decay=0.1, decoupled=True),
        lambda ps: torch.optim.AdamW(ps, 0.1, weight_decay=0.1, amsgrad=True),
    ),
    "adagrad": (
        optim.adagrad(0.1, initial_accumulator_value=0.5, learning_rate_decay=0.1),
        lambda ps: torch.optim.Adagrad(ps, 0.1, lr_decay=0.1, initial_accumulator_value=0.5),
    ),
    "rmsprop": (optim.rmsprop(0.1), lambda ps: torch.optim.RMSprop(ps, 0.1)),
    "rmsprop, centered, with momentum": (
        optim.rmsprop(0.1, centered=True, momentum=0.5),
        lambda ps: torch.optim.RMSprop(ps, 0.1, centered=True, momentum=0.5),
    ),
    "adadelta": (optim.adadelta(), lambda ps: torch.optim.Adadelta(ps, 1.0)),
}
every_case = pytest.mark.parametrize("case", CASES)


class Training:
    """The servers' equation on flat arrays."""

    def __init__(self, spec: OptimizerSpec, model: Model, steps: int = 0) -> None:
        [self.rule] = spec.rules(["w"])[0]
        self.kernel, self.model, self.steps = make_kernel(self.rule, "numpy", np), model, steps

    def step(self, gradient: np.ndarray[Any, Any]) -> None:
        w, *slots = self.model.tables[0]
        self.steps += 1
        self.kernel(w, gradient.copy(), w, tuple(slots), self.steps)


def begun(spec: OptimizerSpec) -> Model:
    [rule] = spec.rules(["w"])[0]
    model = Model.random(job(*PARAMETERS, optimizer=spec.to_wire()), tuple(rule.slots))
    for slot, fill in zip(model.tables[0][1:], rule.slot_fill, strict=True):
        slot[:] = fill
    return model


def tensors(model: Model) -> dict[str, Any]:
    return {name: torch.nn.Parameter(torch.from_numpy(model.array(name).copy())) for name in SHAPES}


def torch_step(optimizer: Any, named: dict[str, Any], gradient: np.ndarray[Any, Any]) -> None:
    at = 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        named[name].grad = torch.from_numpy(gradient[at : at + size].reshape(shape).copy())
        at += size
    optimizer.step()


def flat(named: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in named.values()])


GRADIENTS = [np.random.default_rng(seed).standard_normal(16) for seed in range(8)]


@every_case
@pytest.mark.parametrize("before", [0, 1, 4])
def test_pytorch_goes_on_from_a_checkpoint(case: str, before: int, tmp_path: Path) -> None:
    spec, make = CASES[case]
    servers = Training(spec, begun(spec))
    for gradient in GRADIENTS[:before]:
        servers.step(gradient)
    placement = Placement.balance(KeySpace(PARAMETERS), 2)
    path = save(LocalStorage(), str(tmp_path), servers.model, placement, steps=before)
    named = tensors(servers.model)
    optimizer = make(named.values())
    optimizer.load_state_dict(torch_state(open_checkpoint(path), optimizer, named.items()))
    for gradient in GRADIENTS[before:]:
        servers.step(gradient)
        torch_step(optimizer, named, gradient)
    np.testing.assert_allclose(flat(named), servers.model.tables[0][0], rtol=1e-12, atol=1e-14)


@every_case
@pytest.mark.parametrize("before", [0, 1, 4])
def test_servers_go_on_from_pytorch(case: str, before: int, tmp_path: Path) -> None:
    spec, make = CASES[case]
    named = tensors(begun(spec))
    optimizer = make(named.values())
    for gradient in GRADIENTS[:before]:
        torch_step(optimizer, named, gradient)
    path = from_torch(str(tmp_path), optimizer, named.items(), spec, now=NOW)
    checkpoint = open_checkpoint(path)
    assert checkpoint.manifest.job.optimizer == spec.to_wire()
    placement = Placement.balance(KeySpace(PARAMETERS), 1)
    [slice_] = placement.slices[0]
    found = checkpoint.onto(PARAMETERS, checkpoint.manifest.slots).read(slice_, np.dtype("<f8"))
    model = Model(checkpoint.manifest.job, [[found.value, *found.slots]], checkpoint.manifest.slots)
    servers = Training(spec, model, max(found.steps))
    for gradient in GRADIENTS[before:]:
        servers.step(gradient)
        torch_step(optimizer, named, gradient)
    np.testing.assert_allclose(flat(named), model.tables[0][0], rtol=1e-12, atol=1e-14)


def test_every_twin_is_tested_and_the_others_have_none() -> None:
    assert {spec.name for spec, _ in CASES.values()} == set(TWINS)
    with pytest.raises(OptimizerError, match=r"'lion' has no equivalent in torch\.optim"):
        from_torch("/nowhere", torch.optim.SGD([torch.zeros(1)], 0.1), {}, optim.lion(), now=NOW)


def test_another_optimizer_or_model_is_refused(tmp_path: Path) -> None:
    spec, _ = CASES["adam"]
    path = save(LocalStorage(), str(tmp_path), begun(spec), Placement.balance(KeySpace(PARAMETERS), 1))
    named = tensors(begun(spec))
    checkpoint = open_checkpoint(path)
    for other, says in (
        (torch.optim.SGD(named.values(), 0.1), r"'adam' is torch\.optim\.Adam, not SGD"),
        (torch.optim.Adam(named.values(), 0.1, amsgrad=True), r"not Adam\(amsgrad=True\)"),
    ):
        with pytest.raises(OptimizerError, match=says):
            torch_state(checkpoint, other, named)
    wrong = {"w": torch.nn.Parameter(torch.zeros(2))}
    with pytest.raises(CheckpointMismatchError, match=r"no parameter 'w' of shape \(2,\)"):
        torch_state(checkpoint, torch.optim.Adam(wrong.values()), wrong)
    with pytest.raises(OptimizerError, match="not among named_parameters"):
        torch_state(checkpoint, torch.optim.Adam(wrong.values()), named)


def test_half_precision_is_kept_in_single(tmp_path: Path) -> None:
    named = {"h": torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))}
    path = from_torch(str(tmp_path), torch.optim.SGD(named.values(), 0.1), named, optim.sgd(0.1), now=NOW)
    assert open_checkpoint(path).array("h").tolist() == [1.0, 1.0, 1.0]
    assert open_checkpoint(path).keyspace.parameters[0].dtype == "bfloat16"
