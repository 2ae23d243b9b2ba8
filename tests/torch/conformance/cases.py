"""Combinations: so that each pair of values is in one at least, and all of those pairs of axes that matter most."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tests.torch.conformance import optimizers
from tests.torch.conformance.loops import LOOPS
from tests.torch.conformance.models import MODELS
from tests.torch.conformance.schedules import BY_HAND, SCHEDULES

#: How a script hands its optimizer over, and with which options. With overlap each gradient leaves as soon as it is
#: there, but in "overlap-late", where they wait for more of them, as those of small models do.
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap": {"overlap": True},
    "overlap-late": {"overlap": True},
    "share": {"share_gradients": True},
    "overlap-share": {"overlap": True, "share_gradients": True},
    "training": {},
    "training-overlap": {"overlap": True},
    "group": {},
}
#: What each mode with overlap is to be equal to, to the last bit.
WITHOUT_OVERLAP = {
    "overlap": "plain",
    "overlap-late": "plain",
    "overlap-share": "share",
    "training-overlap": "training",
}

AXES: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "rule": tuple(optimizers.RULES),
    "groups": tuple(optimizers.GROUPS),
    "schedule": tuple(SCHEDULES),
    "loop": tuple(LOOPS),
    "mode": tuple(MODES),
    "workers": (1, 2),
}


@dataclass(frozen=True)
class Case:
    """One combination. Its text is what ``--case`` takes to replay it."""

    model: str = "linear"
    rule: str = "sgd"
    groups: str = "one"
    schedule: str = "constant"
    loop: str = "plain"
    mode: str = "plain"
    workers: int = 1

    def __str__(self) -> str:
        return "/".join(str(value) for value in asdict(self).values())

    def unusual(self) -> str:
        """Return the values that are not the default ones."""
        return " ".join(f"{axis}={value}" for axis, value in asdict(self).items() if value != getattr(Case, axis))

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case of a text."""
        *names, workers = text.split("/")
        return cls(*names, int(workers))  # type: ignore[arg-type]

    @property
    def reference(self) -> tuple[Any, ...]:
        """What plain PyTorch has to train: the case without the mode."""
        return self.model, self.rule, self.groups, self.schedule, self.loop, self.workers


def _numbers_of(rule: str) -> set[str]:
    found = optimizers.RULES[rule]
    return set(found.cls([torch.zeros(1)], **found.options).defaults)


NUMBERS = {rule: _numbers_of(rule) for rule in optimizers.RULES}


def possible(chosen: Mapping[str, Any]) -> bool:
    """Whether PyTorch itself has such a combination, of the axes that are chosen."""
    model, rule, schedule = chosen.get("model"), chosen.get("rule"), chosen.get("schedule")
    if model is not None and rule is not None and MODELS[model].rules and rule not in MODELS[model].rules:
        return False
    if rule is not None and schedule in BY_HAND and BY_HAND[schedule][0] not in NUMBERS[rule]:
        return False
    if rule == "nesterov" and schedule == "own-dampening":
        return False
    if chosen.get("groups") == "two-decays" and rule is not None and "weight_decay" not in NUMBERS[rule]:
        return False
    return chosen.get("mode") != "group" or chosen.get("workers") in (None, 1)


Pair = frozenset[tuple[str, Any]]


def covering(seed: int = 0, strength: int = 2) -> list[Case]:
    """Return few cases, in which each possible pair of values is at least once; or three, or more.

    Greedy: a case begins with a pair that is missing, and takes value by value what adds most.
    """
    chance = random.Random(seed)
    missing = {
        frozenset(zip(axes, values, strict=True)): None
        for axes in itertools.combinations(AXES, strength)
        for values in itertools.product(*(AXES[axis] for axis in axes))
        if possible(dict(zip(axes, values, strict=True)))
    }
    order = list(missing)
    chance.shuffle(order)
    found = []
    for first in order:
        if first not in missing:
            continue
        if (chosen := _completed(dict(first), missing, chance, strength)) is None:
            continue  # no rule is possible with both
        for axes in itertools.combinations(AXES, strength):
            missing.pop(frozenset((axis, chosen[axis]) for axis in axes), None)
        found.append(Case(**chosen))
    return found


def _completed(
    chosen: dict[str, Any], missing: Mapping[Pair, None], chance: random.Random, strength: int
) -> dict[str, Any] | None:
    """Return a case with these values and, for the other axes, those with the most pairs that are missing."""
    rest = [axis for axis in AXES if axis not in chosen]
    chance.shuffle(rest)
    rest.sort(key=lambda axis: axis != "rule")  # on which most of what is possible depends
    for axis in rest:
        others = list(itertools.combinations(chosen, strength - 1))
        best, most = [], -1
        for value in AXES[axis]:
            if not possible({**chosen, axis: value}):
                continue
            new = sum(frozenset([(axis, value), *((o, chosen[o]) for o in names)]) in missing for names in others)
            if new >= most:
                best, most = ([*best, value] if new == most else [value]), new
        if not best:
            return None
        chosen[axis] = chance.choice(best)
    return chosen


def crossed(**fixed: tuple[Any, ...]) -> Iterator[Case]:
    """Return all possible cases of some axes' values."""
    for values in itertools.product(*fixed.values()):
        chosen = dict(zip(fixed, values, strict=True))
        case = Case(**chosen)
        if possible(asdict(case)):
            yield case
        elif "rule" not in fixed and possible({**asdict(case), "rule": "momentum"}):
            yield Case(**{**chosen, "rule": "momentum"})


#: Models that are more than one of the others that is read or called in another way.
LAYERS = tuple(name for name, m in MODELS.items() if not (m.read or m.call or name.startswith("compiled")))
#: What is tried in full, by name: the pairs of axes that matter most.
CROSSES: dict[str, Callable[[], Iterator[Case]]] = {
    "rule-schedule": lambda: crossed(
        rule=AXES["rule"], schedule=AXES["schedule"], groups=("two-rates",), workers=(2,)
    ),
    "rule-groups": lambda: crossed(rule=AXES["rule"], groups=AXES["groups"], schedule=("OneCycleLR",), workers=(1,)),
    "model-mode": lambda: crossed(model=AXES["model"], mode=AXES["mode"], workers=(1, 2), rule=("nesterov",)),
    "model-loop": lambda: crossed(model=LAYERS, loop=AXES["loop"], workers=(2,)),
    "loop-mode": lambda: crossed(loop=AXES["loop"], mode=AXES["mode"], workers=(1, 2), rule=("adam",)),
}  # fmt: skip


def everything(seed: int = 0, strength: int = 2) -> list[Case]:
    """Return the whole suite, each case once."""
    cases = covering(seed, strength)
    for cross in CROSSES.values():
        cases += cross()
    return list(dict.fromkeys(cases))


def sample(number: int, seed: int = 0) -> list[Case]:
    """Return some of the covering, those of compiled models left out: they take seconds each."""
    cases = [case for case in covering(seed) if not case.model.startswith("compiled")]
    return random.Random(seed).sample(cases, number)
