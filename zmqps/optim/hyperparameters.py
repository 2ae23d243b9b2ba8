"""Numbers that are set while a job is trained, in the place of those that its optimizer began with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import OptimizerError
from .options import Number, check_fields
from .registry import BUILTIN
from .spec import OptimizerSpec, Rule, number_fields, rule_class, slots_of

#: Of a group, by name: None where the optimizer's own holds.
Row = dict[str, float | None]


class Hyperparameters:
    """What can be set of an optimizer that trains some parameters, and how it travels.

    Parameters
    ----------
    spec : OptimizerSpec
    names : sequence of str
        Of all parameters, in the order of the job.

    Raises
    ------
    OptimizerError
        The optimizer has groups and is not installed here.
    """

    def __init__(self, spec: OptimizerSpec, names: Sequence[str]) -> None:
        self._spec = spec
        known = spec.name in BUILTIN or bool(spec.groups)
        self._rules: Sequence[Rule] = ()
        self._pairs = {(0, 0)}  # rule and group; without groups one rule is all there is, known here or not
        if known and names:
            self._rules, rule_of = spec.rules(names)
            self._pairs = set(zip(rule_of, spec.groups_of(names), strict=True))
        self._begins = dict(zip(*slots_of(self._rules), strict=True))  # each slot that is kept
        self._fields = number_fields(rule_class(spec.name) if known else Rule)
        self._names = [f.name for f in self._fields]

    def terms(
        self, values: Mapping[str, float], groups: Sequence[Mapping[str, float] | None] | None = None
    ) -> list[float | None]:
        """Return how numbers travel: how many sets there are, then each set; None where the optimizer's own holds.

        A set has the first of the rule's numbers (`Rule.numbers`), as many as it takes. There is one for each of the
        optimizer's rules; or, where groups part that share a rule, one for each group, the first for parameters in
        none. Nothing at all: all are the optimizer's own.

        Parameters
        ----------
        values : mapping of str to float
            Of the parameters in no group, and of groups that have no number of their own of that name.
        groups : sequence, optional
            Those of the groups, in their order; None leaves one as it is.

        Raises
        ------
        OptimizerError
            A number is out of its range, or the optimizer does not have it, or it cannot change; or there are not as
            many as groups.
        """
        if groups is not None and not isinstance(groups, Sequence):
            raise OptimizerError("set_hyperparameters: groups must be a sequence, with an entry for each group")
        asked: list[Mapping[str, float] | None] = [None, *(groups or [None] * len(self._spec.groups))]
        if len(asked) != 1 + len(self._spec.groups):
            raise OptimizerError(
                f"set_hyperparameters: groups has {len(asked) - 1} entries, the optimizer {len(self._spec.groups)} "
                "groups"
            )
        plain = self._checked("values", values)
        rows = [self._row(number, plain, own) for number, own in enumerate(asked)]
        used = [any(row[name] is not None for row in rows) for name in self._names]
        if not any(used):
            return []
        names = self._names[: len(used) - used[::-1].index(True)]
        of_sets = self._of_rules(rows) or rows[: 1 + max(group for _, group in self._pairs)]
        return [float(len(of_sets)), *(row[name] for row in of_sets for name in names)]

    def _of_rules(self, rows: Sequence[Row]) -> list[Row]:
        """Return the row of each rule; none at all where groups differ that share one."""
        found: dict[int, Row] = {}
        for rule, group in self._pairs:
            if found.setdefault(rule, rows[group]) != rows[group]:
                return []
        return [found[rule] for rule in range(len(found))]

    def _row(self, number: int, values: Mapping[str, float], asked: Mapping[str, float] | None) -> Row:
        """Return what replaces a group's own numbers."""
        own = dict(self._own(number))
        row: Row = dict.fromkeys(self._names)
        if number and self._spec.groups[number - 1].frozen:
            return row
        given = self._spec.groups[number - 1].numbers() if number else {}
        row |= {name: value for name, value in values.items() if name not in given}
        if asked is not None:
            row |= self._checked(f"groups[{number - 1}]", asked)
        row = {name: None if value == own.get(name) else value for name, value in row.items()}
        self._check_state(own, row)
        return row

    def _own(self, number: int) -> Iterator[tuple[str, Any]]:
        """Yield the numbers that a group began with, which may be schedules."""
        spec = self._spec
        yield "learning_rate", spec.learning_rate
        yield from spec.hyper.items()
        if number:
            yield from spec.groups[number - 1].numbers().items()

    def _checked(self, what: str, values: Mapping[str, float]) -> dict[str, float]:
        if not isinstance(values, Mapping):
            raise OptimizerError(f"set_hyperparameters: {what} must be a mapping, as {{'weight_decay': 0.1}}")
        name = self._spec.name
        for option in values:
            if option not in self._names:
                raise OptimizerError(
                    f"set_hyperparameters: {option!r:.100} cannot be set of {name}, whose numbers are "
                    f"{', '.join(self._names)}"
                )
        plain = {option: float(Number().accept(f"{name}: {option}", value)) for option, value in values.items()}
        return check_fields(name, self._fields, plain, partial=True)

    def _check_state(self, own: Mapping[str, Any], row: Row) -> None:
        """Raise `OptimizerError` if numbers ask for state that is not kept, or that begins otherwise."""
        values = {option: value for option, value in row.items() if value is not None}
        if not self._rules or not values or self._keeps(values):
            return
        for option, value in values.items():
            if not self._keeps({option: value}):
                raise OptimizerError(
                    f"set_hyperparameters: {option} of {self._spec.name} cannot go from {own.get(option)} to {value} "
                    "while a job is trained: it decides which state is kept, or what that begins with"
                )

    def _keeps(self, values: Mapping[str, float]) -> bool:
        """Whether the rule has, with these numbers, no other state than is kept."""
        changed = self._rules[0].changed(values)
        return all(self._begins.get(slot) == fill for slot, fill in zip(changed.slots, changed.slot_fill, strict=True))
