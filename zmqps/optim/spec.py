"""What an optimizer is: options that travel as plain data, and an equation over one element that servers compute.

The equation is written once, with only elementwise operations of an array namespace (``numpy``,
a device's), so that `kernels` can run it on blocks of an array or compile it over single elements.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field
from functools import cache
from inspect import isabstract
from typing import Any, ClassVar, Self

from ..errors import OptimizerError
from .groups import Group, Groups, places
from .options import Choice, Hyper, Number, Text, check_fields, fields_of, number, option
from .registry import ENTRY_POINT_GROUP, find
from .schedules import Rate, RateOption, rate_at, rate_to_wire

#: Options of every optimizer that a spec does not count among the hyperparameters.
COMMON = ("learning_rate", "clip_value", "clip_norm", "count", "groups")
#: What of those is a number that groups may differ in, and that may be set while a job is trained.
RATE = "learning_rate"
NAME = Text(longest=100)
CLIP = Number(above=0.0, optional=True)


@dataclass(frozen=True)
class OptimizerSpec(ABC):
    r"""An optimizer with its options, as plain data: what `zmqps.optim.adam` and the others make.

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`, evaluated before each update.
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient, after clipping.
    clip_value : float, optional
        Gradients are clipped to ``[-clip_value, clip_value]``, element by element.
    clip_norm : float, optional
        All gradients together are scaled to this norm where theirs is larger, before `clip_value`: the mean of a
        synchronous step, else a push.
    count : {"pushes", "steps"}
        What schedules count where each worker's push is an update: those, or as many steps as all workers make.
    groups : sequence of Group
        Parameters with numbers of their own.

    Raises
    ------
    OptimizerError
        A value is not what its option takes. Options of an optimizer that is not built in are
        checked where it is installed: by `from_wire` and `rules` on the servers.
    """

    name: ClassVar[str]

    learning_rate: Rate = option(RateOption(), 1e-3)
    _: KW_ONLY
    weight_decay: float = number(at_least=0.0, default=0.0)
    clip_value: float | None = option(CLIP, None)
    clip_norm: float | None = option(CLIP, None)
    count: str = option(Choice(("pushes", "steps")), "pushes")
    groups: Sequence[Group] = option(Groups(), ())

    def __post_init__(self) -> None:
        given = tuple(f for f in fields_of(self) if f.init)
        owner = getattr(type(self), "name", "optimizer")
        for name, value in check_fields(owner, given, {f.name: getattr(self, f.name) for f in given}).items():
            object.__setattr__(self, name, value)

    @property
    @abstractmethod
    def hyper(self) -> Mapping[str, float | bool]:
        """Its hyperparameters by name, ``weight_decay`` among them, but for flags that are off as by default."""

    @abstractmethod
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

    def slots_of(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[float, ...]]:
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

    @staticmethod
    def from_wire(mapping: object) -> OptimizerSpec:
        """Return the spec a peer sent, everything about it checked; options that it lacks have their defaults.

        Raises
        ------
        OptimizerError
            It is not a spec, names an optimizer unknown here, or holds a value out of its range.
        """
        if not isinstance(mapping, Mapping):
            raise OptimizerError(f"an optimizer must be a mapping, not {reprlib.repr(mapping)}")
        known = {"name", "hyper", *COMMON}
        if set(mapping) != known:
            raise OptimizerError(f"an optimizer must have exactly the entries {', '.join(sorted(known))}")
        name = str(NAME.accept("optimizer: name", mapping["name"]))
        cls = rule_class(name)
        own = check_fields(name, own_fields(cls), Hyper().accept(name, mapping["hyper"]))
        return cls(**own, **{option: mapping[option] for option in COMMON})


@dataclass(frozen=True)
class Rule(OptimizerSpec):
    """Base of the optimizers: one way of updating, with all its numbers.

    A subclass is a frozen dataclass whose fields (declared with `zmqps.optim.number` and
    `zmqps.optim.flag`) are its options; it says its `name`, its `slots`, and writes `scalars`
    and `equation`. Registered under the entry point group ``zmqps.optimizers``, it can be named by
    `zmqps.optim.custom`. What `rules` returns are its instances for the groups, without groups of their own.

    Attributes
    ----------
    updates_per_step : int
        How many updates a schedule takes for one step.
    frozen : bool
        Whether the values stay as they are.

    Examples
    --------
    A sign descent that another package provides:

    >>> @dataclass(frozen=True, kw_only=True)
    ... class SignDescent(Rule):
    ...     name = "sign_descent"
    ...
    ...     def scalars(self, step):
    ...         return (self.rate(step),)
    ...
    ...     def equation(self, xp):
    ...         def update(w, g, rate):
    ...             return (w - rate * xp.sign(g),)
    ...
    ...         return update
    """

    updates_per_step: int = field(default=1, init=False, repr=False)
    frozen: bool = field(default=False, init=False, repr=False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "steady" not in vars(cls):
            cls.steady = False  # type: ignore[assignment, method-assign]

    def __post_init__(self) -> None:
        super().__post_init__()
        cls = type(self)
        for each in self.groups:
            if each.learning_rate is not None:
                check_fields(self.name, number_fields(cls)[:1], {RATE: each.learning_rate})
            if each.hyper:
                check_fields(f"{self.name}: group", number_fields(cls), each.hyper, partial=True)

    @property
    def hyper(self) -> dict[str, float | bool]:
        values = [(f, getattr(self, f.name)) for f in own_fields(type(self))]
        return {f.name: value for f, value in values if value is not False or f.default is not False}

    def rules(self, names: Sequence[str], workers: int = 1) -> tuple[tuple[Rule, ...], list[int]]:
        updates_per_step = workers if self.count == "steps" else 1
        plain = self.variant(groups=(), count="pushes", updates_per_step=updates_per_step)
        group_of = self.groups_of(names)
        found: dict[Rule, int] = {}
        rule_of: dict[int, int] = {}
        same: dict[object, int] = {}  # by what a group differs in: many do in the same
        for place in sorted(set(group_of)):
            options = self.groups[place - 1].overrides() if place else {}
            key = tuple(options.items())
            if key not in same:
                same[key] = found.setdefault(plain.variant(**options), len(found))
            rule_of[place] = same[key]
        slots_of(found)
        return tuple(found), [rule_of[place] for place in group_of]

    def variant(self, **values: Any) -> Self:
        """Return this rule with other values, which are not checked."""
        made = object.__new__(type(self))
        vars(made).update(vars(self), **values)
        return made

    @classmethod
    def numbers(cls) -> tuple[str, ...]:
        """Return the names of its numbers in the order in which they travel: the learning rate, weight decay, its own.

        Those are what groups may differ in and what may be set while a job is trained: all options but flags.
        """
        return tuple(f.name for f in number_fields(cls))

    def changed(self, values: Mapping[str, float]) -> Self:
        """Return the rule with some of its `numbers` changed.

        Raises
        ------
        OptimizerError
            One of them is not a number of this rule, or out of its range.
        """
        return self.variant(**check_fields(self.name, number_fields(type(self)), values, partial=True))

    @property
    def steady(self) -> bool:
        """Whether `scalars` are the same at every step as long as the learning rate is. Not inherited."""
        return False

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays kept with the values, at most ``kernels.MOST_SLOTS``."""
        return ()

    @property
    def slot_fill(self) -> tuple[float, ...]:
        """Value every element of each slot starts with."""
        return (0.0,) * len(self.slots)

    @property
    def row_slots(self) -> tuple[str, ...]:
        """Names of the state that a row of a table has one number of; a rule that has some is for tables alone."""
        return ()

    @property
    def row_slot_fill(self) -> tuple[float, ...]:
        """Value each of these starts with."""
        return (0.0,) * len(self.row_slots)

    def row_equation(self, xp: Any) -> Callable[..., Any]:
        """Return ``row_update(mean_square, row_slot, *scalars) -> row_slot``, for a rule with one of `row_slots`.

        ``mean_square`` is the mean of the squares of a row's gradient. `equation` is then
        ``update(w, g, row_slot, *scalars) -> (w,)``, with the row slot after that.
        """
        raise NotImplementedError

    @property
    def decouples(self) -> bool:
        """Whether its own equation applies weight decay; if not, that is a part of the gradient (L2)."""
        return False

    def rate(self, step: int) -> float:
        """Return the learning rate of the `step`-th update, the first being 1."""
        return rate_at(self.learning_rate, (step - 1) // self.updates_per_step)

    @abstractmethod
    def scalars(self, step: int) -> tuple[float, ...]:
        """Return the numbers of the `step`-th update (the first is 1), computed in float64.

        Everything that depends on the step alone belongs here; how many numbers there are does not
        depend on the step.
        """

    @abstractmethod
    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        """Return ``update(w, g, *slots, *scalars) -> (w, *slots)``, elementwise in namespace `xp`.

        It may use its arguments, operators and functions of `xp`, nothing else. Literal numbers
        belong in `scalars`, where they take the arrays' dtype: compiled, ``1 - b`` with a float32
        ``b`` would be a float64. A number of the rule may choose between two equations, each a function of
        its own; it must not be captured by one.
        """

    def gradient(self, xp: Any) -> Callable[..., Any]:
        """Return ``gradient(w, g, *gradient_scalars) -> g``: scaled, clipped, and with the L2 term, as there are."""

        def scaled_clipped_decayed(w: Any, g: Any, scale: Any, limit: Any, weight_decay: Any) -> Any:
            return xp.minimum(xp.maximum(scale * g, -limit), limit) + weight_decay * w

        def scaled_clipped(w: Any, g: Any, scale: Any, limit: Any) -> Any:
            return xp.minimum(xp.maximum(scale * g, -limit), limit)

        def scaled_decayed(w: Any, g: Any, scale: Any, weight_decay: Any) -> Any:
            return scale * g + weight_decay * w

        def scaled(w: Any, g: Any, scale: Any) -> Any:
            return scale * g

        def clipped_decayed(w: Any, g: Any, limit: Any, weight_decay: Any) -> Any:
            return xp.minimum(xp.maximum(g, -limit), limit) + weight_decay * w

        def clipped(w: Any, g: Any, limit: Any) -> Any:
            return xp.minimum(xp.maximum(g, -limit), limit)

        def decayed(w: Any, g: Any, weight_decay: Any) -> Any:
            return g + weight_decay * w

        def raw(w: Any, g: Any) -> Any:
            return g

        if self.clip_norm is not None:
            if self.clip_value is not None:
                return scaled_clipped_decayed if self._adds_decay else scaled_clipped
            return scaled_decayed if self._adds_decay else scaled
        if self.clip_value is not None:
            return clipped_decayed if self._adds_decay else clipped
        return decayed if self._adds_decay else raw

    def gradient_scalars(self, scale: float = 1.0) -> tuple[float, ...]:
        """Return the numbers `gradient` needs, the same at every step; but ``scale`` where there is a `clip_norm`."""
        scales = () if self.clip_norm is None else (scale,)
        limit = () if self.clip_value is None else (self.clip_value,)
        return (*scales, *limit, self.weight_decay) if self._adds_decay else (*scales, *limit)

    @property
    def _adds_decay(self) -> bool:
        return self.weight_decay != 0.0 and not self.decouples


def rule_class(name: str) -> type[Rule]:
    """Return the optimizer of that name.

    Raises
    ------
    OptimizerError
        No optimizer has that name, or the package that registered it cannot be loaded.
    """
    found = find(name)
    if not (isinstance(found, type) and issubclass(found, Rule)) or isabstract(found):
        raise OptimizerError(
            f"entry point {name!r} of group {ENTRY_POINT_GROUP!r} is {found!r}; let it name a subclass of "
            "zmqps.optim.Rule with scalars and an equation"
        )
    return found


@cache
def own_fields(cls: type[Rule]) -> tuple[Field[Any], ...]:
    """Return the fields of `OptimizerSpec.hyper`."""
    return tuple(f for f in fields_of(cls, without=COMMON) if f.init)


@cache
def number_fields(cls: type[Rule]) -> tuple[Field[Any], ...]:
    """Return the fields of `Rule.numbers`."""
    rate = tuple(f for f in fields_of(cls) if f.name == RATE)
    return (*rate, *(f for f in own_fields(cls) if isinstance(f.metadata.get("option", Number()), Number)))


def slots_of(rules: Iterable[Rule]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the slots that the rules of one job share, and what each begins with: those of the rule with most.

    Raises
    ------
    OptimizerError
        They cannot share them: their slots begin with different numbers.
    """
    rules = list(rules)
    if not rules:
        return (), ()
    most = max(rules, key=lambda rule: len(rule.slots))
    fills = dict(zip(most.slots, most.slot_fill, strict=True))
    for rule in rules:
        if any(fills.get(slot) != fill for slot, fill in zip(rule.slots, rule.slot_fill, strict=True)):
            raise OptimizerError(
                f"{rule.name}: groups may not differ in what decides the state that is kept, or what it begins with "
                "(initial_accumulator_value)"
            )
    return most.slots, most.slot_fill
