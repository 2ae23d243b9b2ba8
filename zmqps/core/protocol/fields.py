"""The composite fields of messages."""

from __future__ import annotations

from collections.abc import Mapping

#: (slice index, version, ranges): ranges are start, stop, start, stop, … in elements from the start of the slice,
#: ascending; an empty list means the whole slice. In a push ``version`` is the one last read.
Part = tuple[int, int, tuple[int, ...]]

#: (incarnation, attempts): the pushes of a worker that form its part of a committed step.
Contributor = tuple[bytes, tuple[int, ...]]

#: (age, step, values): what a script logged this many seconds before sending, with its step, if it named one.
Entry = tuple[float, int | None, Mapping[str, float]]
