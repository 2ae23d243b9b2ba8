"""Learning rates that are set while a job is trained, in the place of those that its optimizer began with."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import OptimizerError
from .groups import assign
from .options import LARGEST, Number
from .spec import OptimizerSpec

#: What is set is a number, not a schedule: whoever sets it knows when.
_RATE = Number(at_least=0.0, at_most=LARGEST)


def rates_of(
    spec: OptimizerSpec, names: Sequence[str], learning_rate: float, groups: Sequence[float | None] = ()
) -> list[float | None]:
    """Return the learning rate of each of a spec's rules; None where that stays as it is.

    Parameters
    ----------
    spec : OptimizerSpec
    names : sequence of str
        Of all parameters, in their order.
    learning_rate : float
        Of the parameters whose group has none of its own.
    groups : sequence of float, optional
        Those of the groups, in their order: None leaves one as it is.

    Raises
    ------
    OptimizerError
        A number is out of its range, or groups that were the same in ``init`` would not be any more.
    """
    default = float(_RATE.accept("set_learning_rate: learning_rate", learning_rate))
    if len(groups) not in (0, len(spec.groups)):
        raise OptimizerError(
            f"set_learning_rate: groups has {len(groups)} numbers, the optimizer {len(spec.groups)} groups"
        )
    of_group: list[float | None] = [
        None if rate is None else float(_RATE.accept(f"set_learning_rate: groups[{number}]", rate))
        for number, rate in enumerate(groups or [None] * len(spec.groups))
    ]
    for number, group in enumerate(spec.groups):
        if of_group[number] is None and group.learning_rate is None:
            of_group[number] = default
    if not spec.groups:
        return [default]  # known without its rules, which only the servers may have
    place = {id(group): number for number, group in enumerate(spec.groups)}
    rules, indices = spec.rules(names)
    found: dict[int, float | None] = {}
    for name, own, rule in zip(names, assign(spec.groups, names), indices, strict=True):
        rate = default if own is None else of_group[place[id(own)]]
        if found.setdefault(rule, rate) != rate:
            raise OptimizerError(
                f"set_learning_rate: {name!r} has the same numbers in init as parameters of another group, and keeps "
                "the same learning rate; give its group a learning_rate of its own in init"
            )
    return [found.get(rule) for rule in range(len(rules))]
