"""Which optimizer, as plain data: what the training script says and the servers turn into rules."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import OptimizerError
from .base import CLIP, COMMON, Rule, number_fields, slots_of
from .groups import Group, groups_of, places
from .options import Choice, Hyper, Text, check_fields, fields_of, option
from .registry import BUILTIN, rule_class
from .schedules import Rate, RateOption, rate_to_wire


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimizer with its numbers, as plain data; the functions of `zmqps.optim` make one.

    Parameters
    ----------
    name : str
        A built-in optimizer, or one registered by entry point on the servers.
    hyper : mapping
        Its hyperparameters, ``weight_decay`` among them.
    learning_rate : float or Schedule
    clip_value : float, optional
        Gradients are clipped to ``[-clip_value, clip_value]``.
    clip_norm : float, optional
        The norm of all gradients together, at most: of the mean of a synchronous step, else of a push.
    count : {"pushes", "steps"}
        What schedules count: updates, or updates divided by the workers that the job expects where each of them
        updates alone.
    groups : sequence of Group
        Parameters with numbers of their own.

    Raises
    ------
    OptimizerError
        A value is not what its option takes. Options of an optimizer that is not built in are
        checked where it is installed: by `from_wire` and `rules` on the servers.
    """

    name: str = option(Text(longest=100))
    hyper: Mapping[str, float | bool] = field(default_factory=dict)
    learning_rate: Rate = option(RateOption(), 1e-3)
    clip_value: float | None = option(CLIP, None)
    clip_norm: float | None = option(CLIP, None)
    count: str = option(Choice(("pushes", "steps")), "pushes")
    groups: Sequence[Group] = ()

    def __post_init__(self) -> None:
        plain = fields_of(self, without=("hyper", "groups"))
        checked = check_fields("optimizer", plain, {f.name: getattr(self, f.name) for f in plain})
        checked["hyper"] = Hyper().accept(self.name, self.hyper)
        checked["groups"] = groups_of(self.groups)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.name in BUILTIN:
            self._checked()

    def _checked(self) -> tuple[type[Rule], dict[str, Any]]:
        """Return the class of the rules and what they have in common, after checking all options against it."""
        cls = rule_class(self.name)
        hyper = check_fields(self.name, fields_of(cls, without=COMMON), self.hyper)
        rate = tuple(f for f in fields_of(cls) if f.name == "learning_rate")
        for own in (self.learning_rate, *(g.learning_rate for g in self.groups if g.learning_rate is not None)):
            check_fields(self.name, rate, {"learning_rate": own})
        numbers = number_fields(cls)
        for each in self.groups:
            if each.hyper:
                check_fields(f"{self.name}: group", numbers, each.hyper, partial=True)
        cls.check([hyper, *(hyper | dict(each.hyper) for each in self.groups if each.hyper)])
        common = {name: getattr(self, name) for name in ("learning_rate", "clip_value", "clip_norm")}
        return cls, hyper | common

    def rules(self, names: Sequence[str], workers: int = 1) -> tuple[tuple[Rule, ...], list[int]]:
        """Return the distinct rules the named parameters need, and for each name the index of its rule.

        All rules share the slots of the one with most, so parameters of different groups share arenas. They are in the
        order of the groups, that of parameters in no group first.

        Parameters
        ----------
        names : sequence of str
            Of all parameters, in their order.
        workers : int
            How many update each parameter in a step, each alone.

        Raises
        ------
        OptimizerError
            The optimizer is unknown here, or does not take these options.
        """
        cls, common = self._checked()
        common["updates_per_step"] = workers if self.count == "steps" else 1
        group_of = self.groups_of(names)
        found: dict[Rule, int] = {}
        rule_of: dict[int, int] = {}
        same: dict[object, int] = {}  # by what a group differs in: many do in the same
        for number in sorted(set(group_of)):
            options = self.groups[number - 1].overrides() if number else {}
            key = tuple(options.items())
            if key not in same:
                same[key] = found.setdefault(cls(**{**common, **options}), len(found))
            rule_of[number] = same[key]
        slots_of(found)
        return tuple(found), [rule_of[number] for number in group_of]

    def slots(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return the slots that are kept of the named parameters, and what each begins with; errors as of `rules`."""
        return slots_of(self.rules(names)[0])

    def groups_of(self, names: Sequence[str]) -> list[int]:
        """Return for each name the number of its group, from 1 on; 0: it is in none."""
        return places(self.groups, names)

    def to_wire(self) -> dict[str, Any]:
        """Return this spec as plain data for a message: strings, numbers, None, lists and dicts."""
        return {
            "name": self.name,
            "hyper": dict(self.hyper),
            "learning_rate": rate_to_wire(self.learning_rate),
            "clip_value": self.clip_value,
            "clip_norm": self.clip_norm,
            "count": self.count,
            "groups": [g.to_wire() for g in self.groups],
        }

    @classmethod
    def from_wire(cls, mapping: object) -> OptimizerSpec:
        """Return the spec a peer sent, everything about it checked.

        Raises
        ------
        OptimizerError
            It is not a spec, names an optimizer unknown here, or holds a value out of its range.
        """
        if not isinstance(mapping, Mapping):
            raise OptimizerError(f"an optimizer must be a mapping, not {reprlib.repr(mapping)}")
        known = {f.name for f in fields_of(cls)}
        if set(mapping) != known:
            raise OptimizerError(f"an optimizer must have exactly the entries {', '.join(sorted(known))}")
        spec = cls(**mapping)
        spec._checked()
        return spec


def said(**flags: bool) -> dict[str, bool]:
    """Return the flags that are set: without the others a spec is that of a checkpoint from before there were any."""
    return {name: flag for name, flag in flags.items() if flag is not False}


def custom(
    name: str,
    learning_rate: Rate = 1e-3,
    *,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
    **hyper: float | bool,
) -> OptimizerSpec:
    """Return an optimizer of your own, by the name under which its package registered it on the servers.

    Its class, a subclass of `zmqps.optim.Rule`, never travels: it is installed on every server in a
    package that declares an entry point in group ``zmqps.optimizers``. It need not be installed here.

    Parameters
    ----------
    name : str
        Name of the entry point.
    learning_rate : float or Schedule
    weight_decay, clip_value, clip_norm, count, groups
        As in every optimizer.
    **hyper : float or bool
        The fields of its class.

    Examples
    --------
    >>> spec = custom("sign_descent", learning_rate=1e-3)
    """
    return OptimizerSpec(
        name=name,
        hyper={"weight_decay": weight_decay, **hyper},
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
