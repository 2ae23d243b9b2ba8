"""What every error is: facts, a number, and a text made of them."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Self

Fact = str | int | float | bool | None


class PSError(Exception):
    """Base of all errors of zmqps.

    Parameters
    ----------
    **facts
        Exactly the attributes the class annotates; ``text`` is formatted with them.

    Attributes
    ----------
    code : int
        What travels in an ``Error`` message; never given a second meaning.
    number : str
        The same as users see it, ``Z004``: in logs, in what ``zmqps`` says when it fails, and below a traceback.

    What to do next
    ---------------
    - Do what the text says.
    - A newer zmqps may have sent an error that this one does not know: run `zmqps explain` there.
    """

    code: ClassVar[int] = 1
    number: ClassVar[str] = "Z001"
    text: ClassVar[str] = "{reason}"
    fact_names: ClassVar[tuple[str, ...]] = ("reason",)
    reason: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.number = f"Z{cls.code:03d}"
        own = tuple(n for n, t in inspect.get_annotations(cls).items() if "ClassVar" not in t)
        if own:
            cls.fact_names = own

    def __init__(self, reason: str | None = None, **facts: Fact) -> None:
        if reason is not None:
            facts["reason"] = reason
        if set(facts) != set(self.fact_names):
            raise TypeError(f"{type(self).__name__} takes {self.fact_names}, not {sorted(facts)}")
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(self.text.format_map(facts))
        if self.code != PSError.code:  # of which there is nothing more to say
            self.add_note(f"zmqps explain {self.number} says what happened and what to do next")

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts())

    def facts(self) -> dict[str, Fact]:
        """Return the facts of this error, ready for an ``Error`` message."""
        return {name: getattr(self, name) for name in self.fact_names}

    def again(self) -> Self:
        """Return a new error that says the same, for one that is kept and raised more than once.

        Each time it is raised, an error gets the frames that it went through, in addition to those that it has; and by
        way of them it keeps all that they refer to, such as the message that was refused.
        """
        error = type(self)(**self.facts())  # type: ignore[arg-type]
        error.__cause__ = self.__cause__
        return error


def _rebuild(cls: type[PSError], facts: dict[str, Fact]) -> PSError:
    """Return the error of a class with these facts; for copies and for the user's own pickles."""
    return cls(**facts)  # type: ignore[arg-type]
