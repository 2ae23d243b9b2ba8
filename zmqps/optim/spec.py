"""Which optimizer, as plain data: what the training script says and the servers turn into rules."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from ..errors import OptimizerError
from .base import CLIP, COMMON, Rule
from .groups import Group, assign, groups_of
from .options import Choice, Number, Text, check_fields, fields_of, option
from .registry import BUILTIN, rule_class
from .schedules import Rate, RateOption, rate_to_wire

#: A rule has a handful of hyperparameters; the limit bounds what a peer can make us look at.
MOST_OPTIONS = 64


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
        checked["hyper"] = _hyper(self.name, self.hyper)
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
        common = {name: getattr(self, name) for name in ("learning_rate", "clip_value", "clip_norm")}
        return cls, hyper | common

    def rules(self, names: Sequence[str], workers: int = 1) -> tuple[tuple[Rule, ...], list[int]]:
        """Return the distinct rules the named parameters need, and for each name the index of its rule.

        All rules have the same slots, so parameters of different groups share arenas.

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
        found: dict[Rule, int] = {}
        indices = []
        for own in assign(self.groups, names):
            options = {} if own is None else own.overrides()
            indices.append(found.setdefault(cls(**{**common, **options}), len(found)))
        return tuple(found), indices

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


def _hyper(name: str, hyper: object) -> dict[str, float | bool]:
    if not isinstance(hyper, Mapping) or len(hyper) > MOST_OPTIONS:
        raise OptimizerError(f"{name}: hyperparameters must be a mapping of at most {MOST_OPTIONS} entries")
    plain: dict[str, float | bool] = {}
    for key, value in hyper.items():
        label = f"{name}: {Text(longest=100).accept('name of an option', key)}"
        if isinstance(value, bool):
            plain[key] = value
        else:
            finite = Number().accept(label, value)
            plain[key] = int(value) if isinstance(value, Integral) else finite
    return plain


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
