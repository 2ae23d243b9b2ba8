"""What an optimizer is: an equation over one element, and the numbers it needs at each step.

The equation is written once, with only elementwise operations of an array namespace (``numpy``,
a device's), so that `kernels` can run it on blocks of an array or compile it over single elements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self

from ..errors import OptimizerError
from .options import Flag, Number, check_fields, fields_of, number, option
from .schedules import Rate, RateOption, rate_at

#: Options of every rule that a spec does not count among the hyperparameters.
COMMON = ("learning_rate", "clip_value", "clip_norm", "updates_per_step", "frozen")

CLIP = Number(above=0.0, optional=True)
#: What of those is a number that groups may differ in, and that may be set while a job is trained.
RATE = "learning_rate"
#: Of a step: one of each worker, of which there are no more.
MOST_UPDATES = 65535


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """Base of the optimizers: one way of updating, with all its numbers.

    A subclass is a frozen dataclass whose fields (declared with `options.number` and
    `options.flag`) are its hyperparameters; it says its `name`, its `slots`, and writes `scalars`
    and `equation`. Registered under the entry point group ``zmqps.optimizers``, it can be named by
    `zmqps.optim.custom`.

    Parameters
    ----------
    learning_rate : float or Schedule
        Evaluated before each update.
    weight_decay : float
        Added to the gradient as ``weight_decay * w`` (L2), unless the rule decouples it.
    clip_value : float, optional
        Gradients are clipped to ``[-clip_value, clip_value]``, before weight decay is added.
    clip_norm : float, optional
        Whether gradients are scaled before that: by how much is known once the norm of all of them is.
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

    name: ClassVar[str]

    learning_rate: Rate = option(RateOption())
    weight_decay: float = number(at_least=0.0, default=0.0)
    clip_value: float | None = option(CLIP, None)
    clip_norm: float | None = option(CLIP, None)
    updates_per_step: int = option(Number(at_least=1, at_most=MOST_UPDATES, whole=True), 1)
    frozen: bool = option(Flag(), False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "steady" not in vars(cls):
            cls.steady = False  # type: ignore[assignment, method-assign]

    @property
    def steady(self) -> bool:
        """Whether `scalars` are the same at every step as long as the learning rate is. Not inherited."""
        return False

    @classmethod
    def numbers(cls) -> tuple[str, ...]:
        """Return the names of its numbers in the order in which they travel: the learning rate, weight decay, its own.

        Those are what groups may differ in and what may be set while a job is trained: all options but flags.
        """
        return tuple(f.name for f in number_fields(cls))

    @classmethod  # noqa: B027  (most need no check)
    def check(cls, sets: Sequence[Mapping[str, Any]]) -> None:
        """Raise `OptimizerError` if options do not go together: those of parameters in no group, then of each group."""

    def changed(self, values: Mapping[str, float]) -> Self:
        """Return the rule with some of its `numbers` changed.

        Raises
        ------
        OptimizerError
            One of them is no number of this rule, or out of its range.
        """
        return replace(self, **check_fields(self.name, number_fields(type(self)), values, partial=True))

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state arrays kept beside the values, at most `kernels.MOST_SLOTS`."""
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
        belong into `scalars`, where they take the arrays' dtype: compiled, ``1 - b`` with a float32
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


@cache
def number_fields(cls: type[Rule]) -> tuple[Field[Any], ...]:
    """Return the fields of `Rule.numbers`."""
    own = fields_of(cls, without=tuple(name for name in COMMON if name != RATE))
    return tuple(f for f in own if f.name == RATE or isinstance(f.metadata.get("option", Number()), Number))


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
