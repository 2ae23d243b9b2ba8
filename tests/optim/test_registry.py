"""A user's own optimizer, registered on the server by entry point and named by the script."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.tables import for_each
from zmqps import optim
from zmqps.errors import OptimizerError
from zmqps.optim import OptimizerSpec, Rule, flag, group, make_kernel, number, registry, rules
from zmqps.optim.spec import rule_class


@dataclass(frozen=True, kw_only=True)
class SignDescent(Rule):
    name = "sign_descent"

    sharpness: float = number(above=0.0, default=1.0)
    reverse: bool = flag(default=False)
    scale: float = 1.0

    def scalars(self, step):
        return (self.rate(step) * self.sharpness,)

    def equation(self, xp):
        def update(w, g, rate):
            return (w - rate * xp.sign(g),)

        return update


@dataclass(frozen=True, kw_only=True)
class Needy(SignDescent):
    name = "needy"

    limit: float = number(above=0.0)
    forward: bool = flag(default=True)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that a package with these entry points is installed here."""
    module = ModuleType("somebodys_optimizers")
    module.SignDescent = SignDescent
    module.Needy = Needy
    module.number = 3
    monkeypatch.setitem(sys.modules, module.__name__, module)
    targets = {
        "sign_descent": "somebodys_optimizers:SignDescent",
        "not_a_rule": "somebodys_optimizers:number",
        "unfinished": "zmqps.optim:Rule",
        "broken": "no_such_module:Rule",
        "needy": "somebodys_optimizers:Needy",
        "adam": "somebodys_optimizers:SignDescent",
    }
    points = EntryPoints(EntryPoint(name, target, "zmqps.optimizers") for name, target in targets.items())
    monkeypatch.setattr(registry, "entry_points", lambda *, group: points.select(group=group))


def test_a_registered_optimizer_runs_by_name() -> None:
    sent = optim.custom("sign_descent", 0.5, sharpness=2.0, groups=[group("b*", learning_rate=0.25)])
    rules, indices = OptimizerSpec.from_wire(sent.to_wire()).rules(["a", "b"])
    assert indices == [0, 1]
    for rule, expected in zip(rules, (-1.0, -0.5), strict=True):
        for backend in ("numpy", "numba"):
            w = np.zeros(2, np.float32)
            make_kernel(rule, backend)(w, np.array([3.0, -4.0], np.float32), w, (), 1)
            assert w.tolist() == [expected, -expected]


@for_each("forward", [False, True])
def test_a_flag_that_is_on_by_default_can_be_off(forward: bool) -> None:
    sent = optim.custom("needy", limit=1.0, forward=forward)
    (rule,), _ = OptimizerSpec.from_wire(OptimizerSpec.from_wire(sent.to_wire()).to_wire()).rules(["w"])
    assert (rule.limit, rule.forward) == (1.0, forward)


def test_the_script_needs_no_optimizer_of_that_name_but_the_server_does() -> None:
    spec = optim.custom("elsewhere", anything=1)
    assert spec.to_wire()["hyper"] == {"weight_decay": 0.0, "anything": 1}
    with pytest.raises(OptimizerError, match=r"no optimizer named 'elsewhere'; known here are .*sgd.*sign_descent"):
        OptimizerSpec.from_wire(spec.to_wire())


@for_each(
    "name, hyper, text",
    [
        ("sign_descent", {"sharpness": 0.0}, "sign_descent: sharpness must be a finite number above 0"),
        ("sign_descent", {"reverse": 1.0}, "sign_descent: reverse must be True or False"),
        ("sign_descent", {"scale": True}, "sign_descent: scale must be a finite number"),
        ("sign_descent", {"blunt": 1.0}, "sign_descent has no option 'blunt'; its options are reverse, scale, sharp"),
        ("sign_descent", {"frozen": True}, "sign_descent has no option 'frozen'"),
        ("needy", {}, "needy needs a value for limit"),
        ("not_a_rule", {}, "entry point 'not_a_rule' .* is 3; let it name a subclass of zmqps.optim.Rule"),
        ("unfinished", {}, "let it name a subclass of zmqps.optim.Rule with scalars and an equation"),
        ("broken", {}, "'broken' .*cannot be loaded .ModuleNotFoundError.*repair or remove its package"),
    ],
)
def test_what_the_class_does_not_take_is_refused_on_the_server(name: str, hyper, text: str) -> None:
    with pytest.raises(OptimizerError, match=text):
        OptimizerSpec.from_wire(optim.custom(name, **hyper).to_wire())


def test_a_package_cannot_take_the_name_of_a_builtin() -> None:
    assert rule_class("adam").__module__ == "zmqps.optim.rules.adam"


def test_every_builtin_has_a_module_and_is_exported_under_its_name() -> None:
    modules = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert modules == set(registry.BUILTIN) <= set(optim.__all__), "import each of rules/ in zmqps/optim/__init__.py"
    assert {name: getattr(optim, name) for name in modules} == registry.BUILTIN
    assert all(rule_class(name).name == name for name in modules)


@for_each("name", registry.BUILTIN)
def test_the_docstring_of_a_builtin_describes_each_option_of_its_signature_once(name: str) -> None:
    cls = registry.BUILTIN[name]
    described = re.findall(r"^(\w+(?:, \w+)*) : ", cls.__doc__, re.MULTILINE)
    assert sorted(", ".join(described).split(", ")) == sorted(inspect.signature(cls).parameters)
    assert list(inspect.signature(cls).parameters)[:2] == ["learning_rate", "weight_decay"]
    assert "\n\nExamples\n--------\n>>> " in cls.__doc__
