"""Optimizers that are translated, and those that are refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from zmqps.errors import OptimizerError  # noqa: E402
from zmqps.torch import spec_of  # noqa: E402


def named() -> dict[str, Any]:
    return {name: torch.nn.Parameter(torch.zeros(3)) for name in ("a", "b", "c")}


def test_groups_become_groups_of_exact_names_and_what_is_in_none_is_frozen() -> None:
    p = named()
    adam = torch.optim.Adam([{"params": [p["a"]]}, {"params": [p["b"]], "lr": 0.5, "weight_decay": 0.1}], lr=0.1)
    spec = spec_of(adam, p.items(), clip_norm=2.0, clip_value=3.0, count="steps")
    assert (spec.name, spec.learning_rate, spec.clip_norm, spec.clip_value, spec.count) == (
        "adam",
        0.1,
        2.0,
        3.0,
        "steps",
    )
    assert [(g.names, g.learning_rate, g.weight_decay, g.frozen) for g in spec.groups] == [
        (("b",), 0.5, 0.1, False),
        (("c",), None, None, True),
    ]


def test_an_optimizer_that_servers_do_not_have_is_refused_by_name() -> None:
    p = named()

    class Own(torch.optim.SGD):
        pass

    for optimizer in (torch.optim.NAdam(p.values()), torch.optim.LBFGS(p.values()), Own(p.values(), lr=0.1)):
        with pytest.raises(OptimizerError, match=rf"{type(optimizer).__name__} has no equal.*SGD, Adam, AdamW"):
            spec_of(optimizer, p.items())


@pytest.mark.parametrize("option", ["maximize", "differentiable"])
def test_an_option_that_servers_do_not_have_is_refused_by_name(option: str) -> None:
    p = named()
    with pytest.raises(OptimizerError, match=rf"Adam\({option}=True\)"):
        spec_of(torch.optim.Adam(p.values(), **{option: True}), p.items())


def test_groups_may_not_differ_in_what_servers_have_once() -> None:
    p = named()
    groups = [{"params": [p["a"]]}, {"params": [p["b"]], "betas": (0.5, 0.9), "eps": 1e-3}]
    with pytest.raises(OptimizerError, match=r"lr and weight_decay.*betas"):
        spec_of(torch.optim.Adam(groups), p.items())


def test_a_tensor_that_is_not_of_the_model_is_refused() -> None:
    p = named()
    with pytest.raises(OptimizerError, match="param group 0"):
        spec_of(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1), p.items())
