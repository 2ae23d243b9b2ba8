"""Index ranges of a data set, handed out to workers so that every example is used once per pass.

The coordinator knows only numbers: how many examples there are, never their content. A range is taken by one worker and
*done* when that worker asks for the next one or finishes. The range of a lost, evicted or closed worker is handed out
again, before anything else. The next pass begins when all of this one is done: until then requests wait, because a
range may come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from zmqps.core.coordinator.journal import Plain, nothing, packed, unpacked
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.training.waits import Waiter
from zmqps.core.job.data import DataSpec, Number
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Range, Take, Waiting
from zmqps.errors import LimitError, PSError, listed

#: Data sets by name; a training has one, and perhaps one to evaluate with.
MAX_DATA_SETS = 1024
#: A worker may have named this many that are not used up; the bound keeps it from using up what others need.
MAX_NAMED = 64
#: The most awaited workers that an error names.
MOST_NAMED = 8
#: A checkpoint's part: its description, its pass, the next range, and those to do again.
SAVED_FIELDS = 4
#: How many data sets, and how many workers of each, the status shows.
MOST_SHOWN = 64


class DataSet:
    """Which ranges of one data set are open, which worker has which, and which are done.

    The remaining ones are a counter and the few ranges that came back, so its memory is bounded by the number of
    workers, however many ranges there are.
    """

    def __init__(self, spec: DataSpec, owner: str, named_by: bytes) -> None:
        self.spec = spec
        self.owner = owner
        self.named_by = named_by
        self.lasts = False  # a counting worker has asked for it
        self.here: set[bytes] = set()  # members that have asked for it
        self.data_pass = 0
        self.taken: dict[bytes, int] = {}
        self.waiting: dict[bytes, int] = {}  # incarnation -> request
        self.num_done = 0  # in this pass
        self.num_returned = 0  # ever
        self._next = 0
        self._returned: deque[int] = deque()

    @property
    def over(self) -> bool:
        return self.data_pass == self.spec.passes

    @property
    def untouched(self) -> bool:
        """Whether none of it is done."""
        return not self.data_pass and not self.num_done

    def done(self, worker: bytes, used: Number) -> None:
        """A worker has used a range; ignored unless the worker has that range."""
        if used == (self.data_pass, self.taken.get(worker)):
            self._done(worker)

    def _done(self, worker: bytes) -> None:
        del self.taken[worker]
        self.num_done += 1
        if self.num_done == self.spec.num_ranges:
            self.data_pass, self.num_done, self._next = self.data_pass + 1, 0, 0

    def take(self, worker: bytes) -> int | None:
        """Give a worker a range, its present one if it has one; None if there is none at the moment."""
        if self.over:
            return None
        if worker not in self.taken:
            if self._returned:
                self.taken[worker] = self._returned.popleft()
            elif self._next < self.spec.num_ranges:
                self.taken[worker] = self._next
                self._next += 1
        return self.taken.get(worker)

    def leave(self, worker: bytes, *, finished: bool) -> None:
        """A worker has departed: its range is done if it has finished, and to do again otherwise."""
        self.waiting.pop(worker, None)
        if worker in self.taken:
            if finished:
                self._done(worker)
            else:
                self._returned.append(self.taken.pop(worker))
                self.num_returned += 1

    def range(self, request: int, number: int | None, step: int) -> Range:
        """Return the answer with a range, or that there is none any more."""
        if number is None:
            return Range(request, self.data_pass, 0, 0, 0, step)
        start = number * self.spec.range_size
        return Range(
            request, self.data_pass, number, start, min(start + self.spec.range_size, self.spec.num_examples), step
        )

    def dump(self) -> Plain:
        """Return the journaled state; waiting workers ask again."""
        return [
            packed(self.spec.take(0, None)), self.owner, self.named_by, self.lasts, sorted(self.here), self.data_pass,
            [[who, number] for who, number in self.taken.items()], self.num_done, self.num_returned, self._next,
            list(self._returned),
        ]  # fmt: skip

    @classmethod
    def restored(cls, kept: Plain) -> DataSet:
        take, owner, named_by, lasts, here, data_pass, taken, num_done, num_returned, following, returned = kept
        data = cls(DataSpec.of(unpacked(take)), owner, named_by)
        data.lasts, data.here, data.data_pass = lasts, set(here), data_pass
        data.taken = dict(taken)
        data.num_done, data.num_returned, data._next = num_done, num_returned, following
        data._returned = deque(returned)
        return data

    def saved(self) -> list[Any]:
        """Return its position as plain data; ranges taken and not used are open again."""
        spec, out = self.spec, sorted([*self.taken.values(), *self._returned])
        described = [spec.name, spec.num_examples, spec.range_size, spec.passes, spec.shuffle_seed]
        return [described, self.data_pass, self._next, out]

    def resume(self, saved: list[Any]) -> None:
        """Restore a position of `saved`."""
        _, self.data_pass, self._next, out = saved
        self._returned = deque(out)
        self.num_done = self._next - len(out)

    def go_back(self, saved: list[Any] | None) -> None:
        """Restore a position of `saved`, or the beginning; taken ranges are open again."""
        self.taken.clear()
        self.resume(saved if saved is not None else [[], 0, 0, []])

    def validate(self) -> None:
        """Assert that every range of the pass is in one place."""
        assert 0 <= self.data_pass <= self.spec.passes
        out = [*self.taken.values(), *self._returned]
        assert len(set(out)) == len(out)
        assert all(number < self._next for number in out)
        assert self.num_done + len(out) == self._next <= self.spec.num_ranges
        assert not self.waiting or not self.over
        assert not set(self.waiting) & set(self.taken)


class DataSets:
    """The data sets of a job.

    A worker that waits for a range is *paused*: no step may wait for it meanwhile, or it and those whose ranges it
    waits for would wait for each other.
    """

    def __init__(
        self,
        members: Mapping[bytes, MemberInfo],
        counts: Callable[[MemberInfo], bool],
        pause: Callable[[MemberInfo, str], None],
        resume: Callable[[MemberInfo, str], int],
        changed: Callable[[str], None] = lambda name: nothing(),
    ) -> None:
        self.by_name: dict[str, DataSet] = {}
        self._changed = changed  # called with the name of a data set
        self._saved: dict[str, list[Any]] = {}  # positions of those that no member has named since the job was restored
        self._of: dict[bytes, dict[str, DataSet]] = {}  # those that each worker has requested a range of
        self._members = members
        self._counts = counts  # whether a member counts: whether a data set that it requests lasts
        self._pause = pause
        self._resume = resume  # returns the clock that it continues with if it was paused, else 0

    def take(self, member: MemberInfo, message: Take) -> list[Action]:
        """A worker requests a range.

        Raises `JobMismatchError`: another worker has described this data set differently, and counts or this one does
        not; `ConfigurationError` or `LimitError`: it cannot be handed out.
        """
        spec, counts = DataSpec.of(message), self._counts(member)
        data, actions = self.by_name.get(spec.name), list[Action]()
        if data is not None and counts and not data.lasts and data.spec != spec:  # replaces others' description
            actions += self._drop(data, _differs(data, spec, member))
            data = None
        if data is None:
            actions += self._check_room(member, counts=counts)
            data = DataSet(spec, member.title, member.incarnation)
            if (saved := self._saved.get(spec.name)) is not None:
                _described(saved).check_same(spec, "the checkpoint")
                data.resume(saved)
            self.by_name[spec.name] = data
        data.spec.check_same(spec, data.owner)
        self._changed(spec.name)
        data.lasts |= counts
        if data.lasts:
            self._saved.pop(spec.name, None)  # not before: one that does not last restores its position
        data.here.add(member.incarnation)
        if len(message.done) == 2:
            data.done(member.incarnation, (message.done[0], message.done[1]))
        self._of.setdefault(member.incarnation, {})[spec.name] = data
        data.waiting[member.incarnation] = message.request
        actions += self._serve(data, member.incarnation)
        if member.incarnation in data.waiting:
            self._pause(member, _reason(data))
            actions.append(Send(member.peer, Waiting(message.request, self.waiting_for(data))))
        return actions

    def _check_room(self, member: MemberInfo, *, counts: bool) -> list[Action]:
        """Make room for one more that this member names, or raise `LimitError`."""
        who = member.incarnation
        # used-up ones do not burden a worker that counts: it may name one for each of many epochs
        named = sum(d.named_by == who and not (counts and d.over) for d in self._of.get(who, {}).values())
        if named >= MAX_NAMED:
            raise LimitError(what="number of data sets of a worker", got=named + 1, limit=MAX_NAMED)
        if len(self.by_name) < MAX_DATA_SETS:
            return []
        full = LimitError(what="number of data sets", got=len(self.by_name) + 1, limit=MAX_DATA_SETS)
        # used-up ones without members, or without counting ones, are dropped if there is no room
        may_go = (d for d in self.by_name.values() if (d.over and not d.here) or (counts and not d.lasts))
        goes = next(may_go, None)
        if goes is None:
            raise full
        return self._drop(goes, full)

    def _drop(self, data: DataSet, error: PSError) -> list[Action]:
        """End a data set; ``error`` is for its waiting workers."""
        self._changed(data.spec.name)
        del self.by_name[data.spec.name]
        for who in data.here:
            del self._of[who][data.spec.name]
            if not self._of[who]:
                del self._of[who]
        waiting = [(self._members[who], request) for who, request in data.waiting.items()]
        for member, _ in waiting:
            self._resume(member, _reason(data))
        return [member.fail(request, error) for member, request in waiting]

    def _serve(self, data: DataSet, asker: bytes = b"") -> list[Action]:
        """Give waiting workers ranges, in order of arrival; ``asker`` may have a range already."""
        actions: list[Action] = []
        first = [asker] if asker in data.taken else []
        while worker := next(iter(first or data.waiting), None):
            first = []
            number = data.take(worker)
            if number is None and not data.over:
                break  # there is none for the others either
            request, member = data.waiting.pop(worker), self._members[worker]
            actions.append(member.answer(request, data.range(request, number, self._resume(member, _reason(data)))))
        return actions

    def withdraw(self, member: MemberInfo, request: int) -> None:
        """A worker no longer waits for a range."""
        for data in self._of.get(member.incarnation, {}).values():
            if data.waiting.get(member.incarnation) == request:
                del data.waiting[member.incarnation]
                self._resume(member, _reason(data))

    def leave(self, member: MemberInfo, *, finished: bool) -> list[Action]:
        actions: list[Action] = []
        for data in self._of.pop(member.incarnation, {}).values():
            self._changed(data.spec.name)
            data.leave(member.incarnation, finished=finished)
            data.here.discard(member.incarnation)
            if not data.here and (data.untouched or not data.lasts):
                del self.by_name[data.spec.name]
            else:
                actions += self._serve(data)
        return actions

    def saved(self) -> list[Any]:
        """Return the positions of all that last, as plain data."""
        return [*self._saved.values(), *(data.saved() for data in self.by_name.values() if data.lasts)]

    def resume(self, saved: Iterable[list[Any]]) -> None:
        """Let data sets that are named from now on continue at their saved positions."""
        self._saved = {entry[0][0]: entry for entry in saved}
        for name in self._saved:
            self._changed(name)

    def go_back(self, saved: Iterable[list[Any]]) -> list[Action]:
        """Set all data sets to their positions in a checkpoint; taken ranges do not count any more."""
        stood = {entry[0][0]: entry for entry in saved}
        for name, data in list(self.by_name.items()):
            entry = stood.get(name)
            data.go_back(entry if entry is not None and _described(entry) == data.spec else None)
            if data.lasts:
                stood.pop(name, None)
            if not data.here:
                del self.by_name[name]
                if entry is not None:
                    stood[name] = entry
        for name in {*self.names, *stood}:
            self._changed(name)
        self._saved = stood
        return [action for data in self.by_name.values() for action in self._serve(data)]

    def begin_anew(self) -> None:
        """Another job has this name now: no counting worker has asked for any yet."""
        for data in list(self.by_name.values()):
            self._changed(data.spec.name)
            data.lasts = False
            if not data.here:
                del self.by_name[data.spec.name]

    def waiting_for(self, data: DataSet) -> str:
        """Return which workers have the ranges that others wait for."""
        taken = list(islice(data.taken.items(), MOST_NAMED))
        texts = [f"{self._members[worker].title} (range {number})" for worker, number in taken]
        who = listed(texts, MOST_NAMED, len(data.taken))
        return f"{who}: the last ranges of pass {data.data_pass} of data set {data.spec.name!r}"

    @property
    def anybody_waits(self) -> bool:
        return any(data.waiting for data in self.by_name.values())

    def waiters(self) -> Iterator[Waiter]:
        """Yield the waiting workers, with the request, and a function that says what it waits for."""
        for data in self.by_name.values():
            say = partial(self.waiting_for, data)
            for worker, request in data.waiting.items():
                yield self._members[worker], request, say

    def status(self) -> list[dict[str, Any]]:
        return [
            {
                "name": data.spec.name,
                "pass": data.data_pass,
                "passes": data.spec.passes,
                "done": data.num_done,
                "ranges": data.spec.num_ranges,
                "examples": data.spec.num_examples,
                "taken": {self._members[w].title: n for w, n in islice(data.taken.items(), MOST_SHOWN)},
                "returned": data.num_returned,
                "waiting": [self._members[worker].title for worker in islice(data.waiting, MOST_SHOWN)],
                **({"not_shown": more} if (more := _more(data.taken) + _more(data.waiting)) else {}),
            }
            for data in islice(self.by_name.values(), MOST_SHOWN)
        ]

    def dump(self, name: str) -> Plain:
        """Return the journaled state of a data set, in use or from a checkpoint; None if there is none of this name."""
        return self.by_name[name].dump() if name in self.by_name else self._saved.get(name)

    @property
    def names(self) -> list[str]:
        """The names of those in use, and of those from a checkpoint."""
        return [*self.by_name, *self._saved]

    def restore(self, kept: Plain) -> None:
        """Restore a journaled data set."""
        if len(kept) == SAVED_FIELDS:
            self._saved[kept[0][0]] = kept
            return
        data = DataSet.restored(kept)
        self._saved.pop(data.spec.name, None)
        self.by_name[data.spec.name] = data
        for who in data.here:
            self._of.setdefault(who, {})[data.spec.name] = data

    def validate(self) -> None:
        for data in self.by_name.values():
            data.validate()
            assert {*data.taken, *data.waiting} <= data.here
            assert data.here == {who for who, of in self._of.items() if of.get(data.spec.name) is data}
            assert data.here or (data.lasts and not data.untouched)
        assert sum(map(len, self._of.values())) == sum(len(data.here) for data in self.by_name.values())
        assert set(self._of) <= set(self._members)


def _described(saved: list[Any]) -> DataSpec:
    name, num_examples, range_size, passes, shuffle_seed = saved[0]
    return DataSpec(
        name=name, num_examples=num_examples, range_size=range_size, passes=passes, shuffle_seed=shuffle_seed
    )


def _more(of: Mapping[bytes, int]) -> int:
    return max(0, len(of) - MOST_SHOWN)


def _differs(data: DataSet, spec: DataSpec, member: MemberInfo) -> PSError:
    """Return the error for workers whose description differs from that of a worker that counts."""
    try:
        spec.check_same(data.spec, member.title)
    except PSError as error:
        return error
    raise AssertionError("they are the same")


def _reason(data: DataSet) -> str:
    return f"data set {data.spec.name!r}"
