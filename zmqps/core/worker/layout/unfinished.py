"""A step that was begun and whose end seems to have been forgotten: said once, for nothing changes before it."""

from __future__ import annotations

from zmqps.core.protocol.events import Action, Log
from zmqps.core.worker.operations import Attached
from zmqps.core.worker.transfer import PushTransfer
from zmqps.errors import counted, listed

#: How many of the parameters that a step lacks are named.
MOST_NAMED = 5


class Unfinished:
    """What the pushes of a worker's step have left out, where none of them ends it."""

    def __init__(self) -> None:
        self._lacking: set[int] | None = None  # by all of them; None: there are none
        self._expected = 0
        self._warned = False

    def add(self, push: PushTransfer) -> None:
        """A push leaves that does not end the step."""
        if not push.expected:  # of rows: no parameter is awaited because of it
            return
        lacking = set(push.lacking)
        self._lacking = lacking if self._lacking is None else self._lacking & lacking
        self._expected = push.expected

    def clear(self) -> None:
        """The step is over."""
        self._lacking = None

    def alone(self, push: PushTransfer, attached: Attached | None) -> list[Action]:
        """Tell whoever pushes a part where each push is applied by itself; nothing the second time."""
        if self._warned or attached is None:
            return []
        self._warned = True
        names = [repr(attached.job.parameters[number].name) for number in sorted(push.lacking)]
        pushed = f"{push.expected - len(names)} of {counted(push.expected, 'parameter')} pushed"
        lacking = f"not {listed(names, MOST_NAMED)}, and only what is pushed is updated"
        return [Log("warning", f"{pushed}, {lacking}; push(step=True) says that this is meant")]

    def warning(self, attached: Attached | None) -> str:
        """Return what to tell whoever reads in the middle of a step; nothing the second time."""
        if self._lacking is None or self._warned or attached is None:
            return ""
        self._warned = True
        names = [repr(attached.job.parameters[number].name) for number in sorted(self._lacking)]
        pushed = f"{self._expected - len(names)} of {counted(self._expected, 'parameter')} pushed in this step"
        lacking = f", not {listed(names, MOST_NAMED)}" if names else ", one by one"
        return f"{pushed}{lacking}; push(step=True) or advance() ends it, and values change only then"
