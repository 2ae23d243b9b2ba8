"""Messages of what scripts log: values by name, from workers and observers to the coordinator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from zmqps.core.protocol.message import Message, immutable
from zmqps.errors import LimitError, ProtocolError

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U64, Entries

#: Of a value's name: it becomes a label, a tag, and a line of a legend.
MAX_VALUE_NAME_CHARS = 64
#: Values of one call of `zmqps.Worker.log`: the losses and norms of a model, not its layers one by one.
MAX_VALUES = 64
#: Calls in one message, and bytes that their values take there at most: a header that is not large.
MAX_ENTRIES = 512
MAX_ENTRIES_NBYTES = 48 << 10
MAX_STEP = (1 << 63) - 1


@immutable
class Note(Message):
    """What a script has logged, in its order.

    The calls of a member are numbered from 0; ``first`` is the number of the first one here. Those between the ones
    before and this one are lost: there was no room to keep them.
    """

    kind: ClassVar[int] = 92
    first: U64
    entries: Entries


@immutable
class Noted(Message):
    """The coordinator has all calls below this number, or has counted them as lost."""

    kind: ClassVar[int] = 93
    upto: U64


#: The most bytes that an entry takes besides its values.
ENTRY_NBYTES = 24


def value_nbytes(name: str) -> int:
    """Return how many bytes a value of this name takes at most."""
    return 11 + len(name.encode(errors="replace"))


def is_value_name(name: object) -> bool:
    """Whether a value may be called so."""
    return type(name) is str and 0 < len(name) <= MAX_VALUE_NAME_CHARS and name.isprintable()


def checked_entries(value: Any) -> Any:
    """Return what was logged as it came, or raise a `ProtocolError`."""
    if type(value) is not list:
        raise ProtocolError("what was logged is not a list")
    if len(value) > MAX_ENTRIES:
        raise LimitError(what="number of entries", got=len(value), limit=MAX_ENTRIES)
    return tuple([_entry(entry) for entry in value])


def _entry(entry: Any) -> Any:
    if type(entry) is not list or len(entry) != 3:
        raise ProtocolError("what was logged is not made of entries [age, step, values]")
    age, step, values = entry
    if type(age) not in (int, float) or not math.isfinite(age) or age < 0:
        raise ProtocolError("the age of an entry is not a duration in seconds")
    if step is not None and (type(step) is not int or not 0 <= step <= MAX_STEP):
        raise ProtocolError("the step of an entry is not an unsigned integer of 63 bits")
    if type(values) is not dict or not values:
        raise ProtocolError("the values of an entry are not a map with at least one")
    if len(values) > MAX_VALUES:
        raise LimitError(what="number of values", got=len(values), limit=MAX_VALUES)
    for name, number in values.items():
        if type(number) is not float:
            raise ProtocolError("a value of an entry is not a float")
        if not is_value_name(name):
            raise ProtocolError(f"the name of a value is not {MAX_VALUE_NAME_CHARS} printable characters at most")
    return float(age), step, values
