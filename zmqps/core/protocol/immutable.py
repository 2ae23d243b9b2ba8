"""The decorator of messages, events and actions: plain classes with slots, which are never modified.

A frozen dataclass sets each field through ``object.__setattr__``, which takes six times as long, and `dataclass`
compiles seven methods for each class. This one compiles only ``__init__``: the others are shared, and mypy forbids a
change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from dataclasses import Field


class Immutable:
    """Base of all `immutable` classes; objects of one class are equal if their compared fields are."""

    __slots__ = ()
    _compared: ClassVar[Callable[[Any], Any]]
    if TYPE_CHECKING:  # required by `dataclasses.replace` and `dataclasses.fields`
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        compared = type(self)._compared
        return bool(compared(self) == compared(other))

    def __hash__(self) -> int:
        return hash(type(self)._compared(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"{type(self).__qualname__}({shown})"


T = TypeVar("T", bound=Immutable)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make a dataclass with slots of a class that derives from `Immutable`."""
    made: type[T] = dataclass(slots=True, eq=False, repr=False)(cls)
    names = [f.name for f in fields(made) if f.compare]
    # always a tuple, in which arrays that are the same object are equal
    made._compared = attrgetter(*names) if len(names) > 1 else lambda self: tuple([getattr(self, n) for n in names])
    return made


if TYPE_CHECKING:

    @immutable
    class _Example(Immutable):
        number: int

    _Example(1).number = 2  # type: ignore[misc]  # mypy complains of this comment once a change is allowed
