"""An alarm knows of many deadlines no more than is needed to ring in time for each of them."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from zmqps.core.node.timers import Alarm

OWNERS = st.integers(0, 5)
SOON = st.floats(0.0, 10.0)


class BesideASimpleOne(RuleBasedStateMachine):
    """Deadlines that are set, put off and withdrawn while time passes, beside all of them looked at every time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.alarm = Alarm()
        self.dues: dict[int, float | None] = {}
        self.rung: list[tuple[int, float]] = []

    @rule(owner=OWNERS, after=SOON)
    def has_something_to_do(self, owner: int, after: float) -> None:
        self.dues[owner] = self.now + after
        self.alarm.by(self.dues[owner])

    @rule(owner=OWNERS)
    def has_nothing_to_do_any_more(self, owner: int) -> None:
        self.dues[owner] = None
        self.alarm.by(None)

    @rule(owner=OWNERS, after=SOON)
    def puts_it_off_and_says_nothing(self, owner: int, after: float) -> None:
        if (due := self.dues.get(owner)) is not None:
            self.dues[owner] = due + after

    @rule(after=SOON)
    def time_passes(self, after: float) -> None:
        until = self.now + after
        looks = 0
        while self.alarm.due <= until:
            self.now = max(self.now, self.alarm.due)
            looks += 1
            for owner, due in self.dues.items():
                if due is not None and due <= self.now:
                    assert due == self.now, "it rings when the simple one would have"
                    self.dues[owner] = None
            self.alarm.reset(self.dues.values())
        assert looks <= 2 * len(self.dues) + 1, "it does not ring again and again for nobody"
        self.now = until
        assert self.now < self.alarm.due

    @invariant()
    def rings_too_late_for_nobody(self) -> None:
        self.alarm.validate(self.dues.values())


TestBesideASimpleOne = BesideASimpleOne.TestCase


@given(st.lists(st.none() | SOON))
def test_once_all_were_looked_at_it_is_exact(dues: list[float | None]) -> None:
    alarm = Alarm()
    alarm.by(-1.0)
    alarm.reset(dues)
    assert alarm.due == min([due for due in dues if due is not None], default=inf)
