"""Parameter groups: which parameters are updated with numbers of their own, or not at all."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .. import checks
from ..errors import OptimizerError
from .options import Hyper, Names, Number, Text, check_fields, fields_of, flag, option
from .schedules import Rate, RateOption, rate_to_wire

#: Patterns are tried one after another for every parameter; a model has tens of kinds of them, not thousands.
MOST_PATTERNS = 256
#: Groups of exact names are looked up: there may be one for each parameter of a large model.
MOST_GROUPS = 65_536


@dataclass(frozen=True)
class Group:
    """Parameters, by pattern or by name, that are updated with numbers of their own; see `group`."""

    pattern: str | None = option(Text(optional=True), None)
    _: KW_ONLY
    names: Sequence[str] | None = option(Names(optional=True), None)
    learning_rate: Rate | None = option(RateOption(optional=True), None)
    weight_decay: float | None = option(Number(at_least=0.0, optional=True), None)
    frozen: bool = flag(default=False)
    hyper: Mapping[str, float] = field(default_factory=dict, metadata={"option": Hyper(flags=False)})

    def __post_init__(self) -> None:
        for name, value in check_fields("group", fields_of(self), vars(self)).items():
            object.__setattr__(self, name, value)
        if (self.pattern is None) == (self.names is None):
            raise OptimizerError('group: give a pattern, as in group("*.bias"), or names=[...], not both')

    def overrides(self) -> dict[str, Any]:
        """Return the options in which this group differs from the rest."""
        return self.numbers() | {"frozen": self.frozen}

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of this group that take the place of the optimizer's."""
        named = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        return {name: value for name, value in named.items() if value is not None} | dict(self.hyper)

    def to_wire(self) -> dict[str, Any]:
        """Return this group as plain data for a message."""
        rate = None if self.learning_rate is None else rate_to_wire(self.learning_rate)
        plain = {
            "pattern": self.pattern,
            "names": None if self.names is None else list(self.names),
            "learning_rate": rate,
            "weight_decay": self.weight_decay,
            "frozen": self.frozen,
        }
        return plain | ({"hyper": dict(self.hyper)} if self.hyper else {})


@dataclass(frozen=True)
class Groups:
    """Some parameter groups, as `groups_of` takes them."""

    def accept(self, label: str, value: object) -> tuple[Group, ...]:
        return groups_of(value)


def group(
    pattern: str | None = None,
    *,
    names: Iterable[str] | None = None,
    learning_rate: Rate | None = None,
    weight_decay: float | None = None,
    frozen: bool = False,
    **hyper: float,
) -> Group:
    """Return a parameter group: what differs for the parameters whose name matches a pattern, or is among some.

    Parameters
    ----------
    pattern : str
        As in a shell (``*``, ``?``, ``[abc]``), against the whole name, case counting. Of several
        matching groups the first wins. `zmqps.Worker.init` refuses a pattern that matches no parameter.
    names : iterable of str
        In place of a pattern: exactly these, whatever characters are in them.
    learning_rate : float or Schedule, optional
        In place of the optimizer's.
    weight_decay : float, optional
        In place of the optimizer's.
    frozen : bool
        Never update these parameters. No step waits for their gradients.
    **hyper : float
        Other numbers in place of the optimizer's: ``momentum``, ``b1``, ``eps``, … Not its flags, and not what state
        begins with (``initial_accumulator_value``): the whole job has those in common.

    Examples
    --------
    >>> from zmqps.optim import adamw
    >>> spec = adamw(1e-3, groups=[group("*.bias", weight_decay=0.0), group(names=["embedding[0]"], frozen=True)])
    """
    named = ("pattern", "names", "learning_rate", "weight_decay", "frozen")
    for name in hyper:
        if checks.ALIASES.get(name) in named:
            raise OptimizerError(f"group() {checks.no_option(name, named)}")
    return Group(
        pattern,
        names=names,  # type: ignore[arg-type]
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        frozen=frozen,
        hyper=hyper,
    )


def groups_of(entries: object) -> tuple[Group, ...]:
    """Return groups that a script, or a peer, has listed.

    Raises
    ------
    OptimizerError
        They are not groups, or too many.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str | bytes) or len(entries) > MOST_GROUPS:
        raise OptimizerError(f"groups must be a sequence of at most {MOST_GROUPS} groups, made by zmqps.optim.group")
    groups = tuple(entry if isinstance(entry, Group) else _group(entry) for entry in entries)
    patterns = sum(group.pattern is not None for group in groups)
    if patterns > MOST_PATTERNS:
        raise OptimizerError(
            f"groups have at most {MOST_PATTERNS} patterns, not {patterns}; there may be more with names=[...]"
        )
    return groups


def _group(entry: object) -> Group:
    if not isinstance(entry, Mapping):
        raise OptimizerError(f"a group is made by zmqps.optim.group, not {reprlib.repr(entry)}")
    return Group(**check_fields("group", fields_of(Group), entry))


def places(groups: Sequence[Group], names: Sequence[str]) -> list[int]:
    """Return the number of each name's group, the first that is meant for it, from 1 on; 0: it has none."""
    exact: dict[str, int] = {}
    for number, each in enumerate(groups):
        for name in each.names or ():
            exact.setdefault(name, number)
    patterns = [(number, each.pattern) for number, each in enumerate(groups) if each.pattern is not None]
    found: list[int] = []
    for name in names:
        first = exact.get(name, len(groups))
        for number, pattern in patterns:
            if number > first:
                break
            if fnmatchcase(name, pattern):
                first = number
                break
        found.append(first + 1 if first < len(groups) else 0)
    return found


def trained(optimizer: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return which parameters an optimizer (`OptimizerSpec.to_wire`) updates: all that are not frozen."""
    groups = groups_of(optimizer["groups"])
    names = list(names)
    if not any(each.frozen for each in groups):
        return names
    frozen = {number for number, each in enumerate(groups, 1) if each.frozen}
    return [name for name, own in zip(names, places(groups, names), strict=True) if own not in frozen]


def unused(groups: Sequence[Group], names: Sequence[str]) -> tuple[str, bool] | None:
    """Return the first pattern that matches none of the names, or the first name that is not among them; and which.

    The second is True for a pattern; None: every group is meant for something.
    """
    known = set(names)
    for each in groups:
        for name in each.names or ():
            if name not in known:
                return name, False
        if each.pattern is not None and not any(fnmatchcase(name, each.pattern) for name in names):
            return each.pattern, True
    return None
