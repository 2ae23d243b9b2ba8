"""Messages of workers, servers and the coordinator about progress: barriers, steps, ranges of a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U8, U32, U64, Contributors, Terms, Text, Versions


@immutable
class Enter(Message):
    """A worker enters a named barrier."""

    kind: ClassVar[int] = 14
    request: U64
    barrier: Text


@immutable
class Released(Message):
    """All workers have entered the barrier of ``request``; ``step`` as in `Range`."""

    kind: ClassVar[int] = 15
    request: U64
    step: U64


@immutable
class Withdraw(Message):
    """A worker no longer waits for ``request``."""

    kind: ClassVar[int] = 16
    request: U64


@immutable
class Waiting(Message):
    """The workers that ``request`` waits for at the moment, in words."""

    kind: ClassVar[int] = 17
    request: U64
    text: Text


@immutable
class Arrive(Message):
    """A worker has completed a step: all shards have acknowledged these pushes of it.

    No attempts: it has skipped the step; or it only waits, once more, for what it has brought before. ``examples``:
    the worker's weight in a mean over all workers, whatever it pushed. A worker that pushed nothing and does not skip
    names an attempt without a push. With ``leaves_out`` 1 the step's gradients of all workers are discarded.
    """

    kind: ClassVar[int] = 20
    request: U64
    step: U64
    attempts: Versions
    examples: U64 = 1
    leaves_out: U8 = 0


@immutable
class Proceed(Message):
    """The worker of ``request`` may continue, and reads ``version`` or a later one; bounded: that of the slowest clock.

    ``counted`` is 0 when the step was over before its gradients were complete: they were dropped. ``left_out`` is 1
    when no gradient was applied in the step that the worker had arrived at.
    """

    kind: ClassVar[int] = 21
    request: U64
    version: U64
    counted: U8
    left_out: U8 = 0


@immutable
class Commit(Message):
    """The coordinator closes a step: apply the mean of these contributors' gradients, in this order.

    With ``measure`` 1 nothing is applied yet: the server reports how large the mean is (`Measured`), and is informed
    again, then with the ``terms`` that follow from the norm of all shards' together. ``examples`` is the weight of all
    contributors together, where a mean is over all of them; 0: it is over those that pushed. With ``left_out`` 1 no
    gradient is applied; what was set in the step is set.
    """

    kind: ClassVar[int] = 22
    epoch: U32
    step: U64
    contributors: Contributors
    terms: Terms = ()
    measure: U8 = 0
    examples: U64 = 0
    left_out: U8 = 0


@immutable
class Committed(Message):
    """A server has applied a step."""

    kind: ClassVar[int] = 23
    epoch: U32
    step: U64


@immutable
class Take(Message):
    """A worker asks for a range of a data set's examples; the first one's description of it counts.

    ``shuffle`` is empty or holds a seed. ``done`` is empty or holds pass and number of the range that
    the worker has used. One that has a range it has not used gets that again.
    """

    kind: ClassVar[int] = 24
    request: U64
    name: Text
    num_examples: U64
    range_size: U64
    passes: U64
    shuffle: Versions
    done: Versions


@immutable
class Range(Message):
    """Positions ``[start, stop)`` of a pass over a data set; an empty one says that there are no more.

    ``step`` is the clock the worker continues with, if the others did not wait for it while it waited.
    """

    kind: ClassVar[int] = 25
    request: U64
    data_pass: U64
    number: U64
    start: U64
    stop: U64
    step: U64
