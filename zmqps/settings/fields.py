"""How a setting is declared: a field of a dataclass with its default, its kind and its help.

Everything else follows from that: the check of its value, its flag, variable and key in a file (`zmqps.cli.settings`),
its rows in the documents, and its place in the document that a launcher hands to a node.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from zmqps import checks
from zmqps.errors import ConfigurationError
from zmqps.settings.kinds import Kind

SETTING, NESTED = "setting", "nested"

T = TypeVar("T", bound="Settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The facts about an option besides its name and its default.

    Parameters
    ----------
    kind
        What values it takes.
    help
        What it means, as ``--help`` and the documents say it; empty: people cannot set it.
    option
        Its name, if that is not the field's.
    short
        A second flag of one letter.
    shared
        Whether it means the same for every command that has it, so that ``ZMQPS_<OPTION>`` and the top level of the
        file may set it. An address to bind is not: two nodes cannot have one.
    metavar
        The word for the value in ``--help``.
    shown
        What ``--help`` says of the default, where that follows from something else.
    alone
        The value that the flag without one means.
    example
        A value for the example file, where there is no default.
    see
        The page of the documents, and the section there, that say more.
    """

    kind: Kind
    help: str = ""
    option: str = ""
    short: str = ""
    shared: bool = True
    metavar: str = ""
    shown: str = ""
    alone: str = ""
    example: str | int | None = None
    see: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """Which options of another struct are options of this one, too."""

    struct: type[Settings]
    without: tuple[str, ...] = ()
    but: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether an option of the other struct is one of this."""
        return name not in self.without


@dataclass(frozen=True, slots=True)
class Option:
    """A setting as people see it: its name, its default, and the field that it fills.

    Parameters
    ----------
    name
        In snake case, as click and Python have it.
    path
        The field, below the fields that hold its struct.
    default
        The field's; None or empty: it is not said.
    setting
        All else.
    """

    name: str
    path: tuple[str, ...]
    default: Any
    setting: Setting


def setting(default: Any, kind: Kind, help: str = "", **facts: Any) -> Any:
    """Declare a field of a `Settings`: ``lease: float = setting(600.0, Seconds(at_least=0), "…")``."""
    metadata = {SETTING: Setting(kind=kind, help=help, **facts)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def nested(struct: type[Settings], **facts: Any) -> Any:
    """Declare a field that holds the settings of another struct, whose options are options of this one.

    ``without`` names those that are not; ``but`` says of some what is said otherwise here.
    """
    return field(default_factory=struct, metadata={NESTED: Nested(struct=struct, **facts)})


class Settings:
    """Base of the structs: checks the value of each field, and keeps its plain form."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for one in _fields(type(self)):
            value = getattr(self, one.name)
            if (found := one.metadata.get(SETTING)) is not None and not (value is None and default_of(one) is None):
                object.__setattr__(self, one.name, found.kind.check(found.option or one.name, value))
            elif (held := one.metadata.get(NESTED)) is not None and not isinstance(value, held.struct):
                checks.refuse(one.name, f"of {held.struct.__name__}", value)

    def document(self) -> dict[str, Any]:
        """Return the settings as plain data, with paths that mean the same in every directory."""
        plain: dict[str, Any] = {}
        for one in _fields(type(self)):
            value = getattr(self, one.name)
            if isinstance(value, Settings):
                plain[one.name] = value.document()
            elif (found := one.metadata.get(SETTING)) is not None:
                placed = value if value is None else found.kind.placed(value)
                plain[one.name] = str(placed) if hasattr(placed, "__fspath__") else placed
        return plain

    @classmethod
    def from_document(cls, document: object) -> Self:
        """Return the settings that `document` has made plain data of.

        Raises
        ------
        ConfigurationError
            It holds a field that there is not, or a value that cannot be.
        """
        told = dict(checks.mapping("the settings of a node", document, "settings"))
        known = {one.name: one for one in _fields(cls)}
        if unknown := [name for name in told if name not in known]:
            raise ConfigurationError(f"{cls.__name__} {checks.no_option(str(unknown[0]), known)}")
        for name, value in told.items():
            if (held := known[name].metadata.get(NESTED)) is not None:
                told[name] = held.struct.from_document(value)
        return cls(**told)

    @classmethod
    def taken_from(cls, *others: Settings, **changes: Any) -> Self:
        """Return settings with what other structs have of their fields, and with ``changes``."""
        known = {one.name for one in _fields(cls)}
        told = {one.name: getattr(other, one.name) for other in others for one in _fields(other) if one.name in known}
        return cls(**told | changes)


def options(struct: type[Settings]) -> list[Option]:
    """Return the options of a struct, its own before those of its bases; one that fills several fields comes as often.

    A field of the struct itself says what an option of that name means, also where a struct that it holds has one.
    """
    found: list[Option] = []
    own = {name: -place for place, one in enumerate(reversed(struct.__mro__)) for name in inspect.get_annotations(one)}
    for one in sorted(_fields(struct), key=lambda one: own[one.name]):
        if (mine := one.metadata.get(SETTING)) is not None and mine.help:
            found.append(Option(mine.option or one.name, (one.name,), default_of(one), mine))
        elif (held := one.metadata.get(NESTED)) is not None:
            for below in options(held.struct):
                if held.has(below.name):
                    said = dataclasses.replace(below.setting, **held.but.get(below.name, {}))
                    found.append(Option(below.name, (one.name, *below.path), below.default, said))
    return found


def build(struct: type[T], told: Mapping[str, Any]) -> T:
    """Return a struct with the values of its options by name; None leaves the default."""
    values: dict[str, Any] = {}
    for option in options(struct):
        if (value := told.get(option.name)) is None:
            continue
        place = values
        for name in option.path[:-1]:
            place = place.setdefault(name, {})
        place[option.path[-1]] = value
    return _made(struct, values)


def default_of(one: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; None where it has none."""
    if one.default is not dataclasses.MISSING:
        return one.default
    return one.default_factory() if one.default_factory is not dataclasses.MISSING else None


def _made(struct: type[T], values: dict[str, Any]) -> T:
    for one in _fields(struct):
        if (held := one.metadata.get(NESTED)) is not None and one.name in values:
            values[one.name] = _made(held.struct, values[one.name])
    return struct(**values)


def _fields(struct: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(struct)
