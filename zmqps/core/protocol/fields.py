"""What some fields of messages are made of."""

from __future__ import annotations

from collections.abc import Mapping

#: (slice index, version, ranges): ranges are start, stop, start, stop, … in elements from the start
#: of the slice, ascending; none means the whole slice. In a push ``version`` is the one last read.
Part = tuple[int, int, tuple[int, ...]]

#: (incarnation, attempts): which pushes of a worker make its part of a committed step.
Contributor = tuple[bytes, tuple[int, ...]]

#: (age, step, values): what a script has logged so many seconds before this was sent, for its step, if it named one.
Entry = tuple[float, int | None, Mapping[str, float]]
