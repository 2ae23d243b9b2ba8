"""The leader of a host group: its members, the contributors of a round, and the waits between them.

The members are workers of one job on one host, each of them a member of the cluster, too. Their gradients of a step
make a *round*: they are added on the host, pushed once, by the leader, and count for all of them.

A round waits for each member that lives, is not away, and is not at a later step: no longer, then, than the
job itself would wait for it. One that is silent for the heartbeat timeout is dropped, with the words of an eviction.
A gradient that does not fit, because its worker is late, its step is over, or the leader is elsewhere, is not combined:
the member is asked to push `Alone`, which costs bytes and changes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.combine.messages import (
    Alive,
    Alone,
    Away,
    CloseConnection,
    ConnectionEnded,
    Done,
    Dropped,
    Fetched,
    Got,
    Heard,
    Here,
    HostAction,
    HostEvent,
    HostGradients,
    HostMessage,
    HostWaiting,
    Joined,
    JoinGroup,
    Pushing,
    PushRound,
    RoundPushed,
    Say,
    Tell,
    Want,
)
from zmqps.combine.values import ValueShelf, failed
from zmqps.errors import counted, listed

#: Processes of one host that train one job; more are refused, and train as they would without a group.
MAX_MEMBERS = 1024
#: Seconds that a round waits before its members learn what for.
TELL_S = 1.0
MOST_NAMED = 4


@dataclass(slots=True)
class HostMember:
    """A member; ``step`` is that of its next gradients."""

    title: str
    step: int
    heard_at: float
    away: bool = False


class GroupMachine:
    """What the leader of a host group decides.

    Parameters
    ----------
    own
        The title of the leader's own member.
    mode
        Of the job: ``async``, ``bounded`` or ``sync``.
    step
        That of the leader's next gradients.
    interval, timeout
        Seconds between signs of life, and of silence after which a member is dropped.
    now
        The time.
    """

    def __init__(self, own: str, mode: str, step: int, interval: float, timeout: float, now: float) -> None:
        self.members: dict[int, HostMember] = {}
        self.values = ValueShelf(exact=mode == "sync")
        self.next = step  # the lowest step that gradients can still be brought to
        self._own = own
        self._had_own = False
        self._counts_rounds = mode == "async"
        self._interval, self._timeout = interval, timeout
        self._brought: dict[int, dict[int, HostGradients]] = {}  # by step, by member
        self._pushing: PushRound | None = None
        self._answers: dict[int, HostGradients] = {}  # the members that get the answer of the push in flight
        self._now = now
        self._beat_due = now + interval
        self._tell_due: float | None = None
        self._told: tuple[int, ...] = ()

    # --- the door -----------------------------------------------------------------------------

    def handle(self, event: HostEvent, now: float) -> list[HostAction]:
        """Take an event; return what to do."""
        self._now = now
        if isinstance(event, Heard):
            actions = self._heard(event.member, event.message)
        elif isinstance(event, ConnectionEnded):
            actions = self._gone(event.member)
        elif isinstance(event, RoundPushed):
            actions = self._pushed(event)
        elif isinstance(event, Fetched):
            actions = self.values.fetched(event, self._reads_at)
        else:
            self.values.outdate()
            actions = []
        return actions + self._settle()

    def next_deadline(self) -> float:
        """Return when to call `on_deadline`."""
        return self._beat_due if self._tell_due is None else min(self._beat_due, self._tell_due)

    def on_deadline(self, now: float) -> list[HostAction]:
        """Send the leader's sign of life, drop lost members, tell waiting members what they wait for."""
        self._now = now
        actions: list[HostAction] = []
        if now >= self._beat_due:
            self._beat_due = now + self._interval
            for number, member in list(self.members.items()):
                silent = now - member.heard_at
                if silent > self._timeout:
                    text = f"lost {member.title} of this host: last sign of life {silent:.1f} s ago; the host continues"
                    actions += [
                        Say("warning", f"{text} without it"),
                        Tell(number, Dropped(silent)),
                        CloseConnection(number),
                    ]
                    actions += self._gone(number)
                else:
                    actions.append(Tell(number, Alive()))
        if self._tell_due is not None and now >= self._tell_due:
            self._tell_due = None
            actions += self._tell()
        return actions + self._settle()

    # --- members ------------------------------------------------------------------------------

    def _heard(self, number: int, message: HostMessage) -> list[HostAction]:
        if isinstance(message, JoinGroup):
            return self._join(number, message)
        member = self.members.get(number)
        if member is None:
            return [CloseConnection(number)]
        member.heard_at = self._now
        if isinstance(message, HostGradients):
            return self._bring(number, member, message)
        if isinstance(message, Want):
            return self.values.want(number, message, self._reads_at)
        if isinstance(message, Got):
            self.values.got(number, message.number)
        elif isinstance(message, Away):
            member.away = True
        elif isinstance(message, Here):
            member.away, member.step = False, self._step_of(message.step)
        elif not isinstance(message, Alive):
            return [CloseConnection(number), *self._gone(number)]
        return []

    def _join(self, number: int, message: JoinGroup) -> list[HostAction]:
        if number in self.members or len(self.members) >= MAX_MEMBERS:
            return [CloseConnection(number), *self._gone(number)]
        self.members[number] = HostMember(message.name, self._step_of(message.step), self._now)
        self.values.joined(number)
        self._had_own |= message.name == self._own
        return [Tell(number, Joined(self._own, self.next, self._interval, self._timeout))]

    def _gone(self, number: int) -> list[HostAction]:
        if self.members.pop(number, None) is not None:
            self.values.forget(number)
            self._answers.pop(number, None)  # what it has brought counts, where it is on its way
            for brought in self._brought.values():
                brought.pop(number, None)
        return []

    def _step_of(self, step: int) -> int:
        return self.next if self._counts_rounds else step

    @property
    def _reads_at(self) -> int:
        """The step of a read that begins now, where rounds are counted here."""
        return self.next if self._pushing is None else self._pushing.step

    # --- rounds -------------------------------------------------------------------------------

    def _bring(self, number: int, member: HostMember, message: HostGradients) -> list[HostAction]:
        step = self._step_of(message.step)
        if step < self.next or number in self._answers or any(number in round_ for round_ in self._brought.values()):
            return [Tell(number, Alone(reads=False))]
        member.away, member.step = False, step + 1
        self._brought.setdefault(step, {})[number] = message
        return []

    def _settle(self) -> list[HostAction]:
        """Push the round that is complete, if there is one."""
        actions: list[HostAction] = []
        while self._pushing is None and (step := self._first()) is not None:
            brought = self._brought[step]
            if self._is_led(step):
                if awaited := self._awaited(step):
                    if awaited != self._told and self._tell_due is None:
                        self._tell_due = self._now + TELL_S
                    break
                actions += [Tell(number, Pushing(step)) for number in brought]
                self._pushing = PushRound(step, dict(brought))
                self._answers, self.next = dict(brought), step + 1
                actions.append(self._pushing)
            else:
                actions += [Tell(number, Alone(reads=False)) for number in brought]
            del self._brought[step]
            self._tell_due, self._told = None, ()
        return actions

    def _first(self) -> int | None:
        for step in [step for step, brought in self._brought.items() if not brought]:
            del self._brought[step]
        return min(self._brought, default=None)

    def _is_led(self, step: int) -> bool:
        """Whether the leader itself takes part in a round, or will: its connections carry it."""
        for number, member in self.members.items():
            if member.title == self._own:
                return number in self._brought[step] or (not member.away and member.step <= step)
        return not self._had_own

    def _awaited(self, step: int) -> tuple[int, ...]:
        brought = self._brought[step]
        lacking = {number: member for number, member in self.members.items() if number not in brought}
        awaited = tuple(number for number, member in lacking.items() if not member.away and member.step <= step)
        return awaited if self._had_own else (*awaited, -1)

    def _pushed(self, event: RoundPushed) -> list[HostAction]:
        assert self._pushing is not None
        step, answers = self._pushing.step, self._answers
        self._pushing, self._answers = None, {}
        if event.error is None and not event.alone:
            return [Tell(number, Done(step)) for number in answers]
        for number in answers:
            self.members[number].step = step
        if not self._counts_rounds and not self._brought:
            self.next = step  # it can be brought again
        answer = Alone(reads=False) if event.error is None else failed(event.error, reads=False)
        return [Tell(number, answer) for number in answers]

    def _tell(self) -> list[HostAction]:
        step = self._first()
        if step is None or self._pushing is not None:
            return []
        brought = self._brought[step]
        self._told = self._awaited(step)
        names = sorted(self.members[number].title for number in self._told if number in self.members)
        text = (
            f"{listed(names, MOST_NAMED)}: step {step} has the gradients of {counted(len(brought), 'worker')} of this "
            f"host, {counted(len(names), 'live worker')} {'is' if len(names) == 1 else 'are'} awaited"
        )
        return [Say("info", f"waiting for {text}"), *(Tell(number, HostWaiting(text)) for number in brought)]

    def validate(self) -> None:
        """Assert what always holds."""
        self.values.validate()
        for step, brought in self._brought.items():
            assert step >= self.next or self._pushing is not None
            assert set(brought) <= set(self.members)
            assert not set(brought) & set(self._answers)
        assert set(self._answers) <= set(self.members)
        assert self._pushing is not None or not self._answers
