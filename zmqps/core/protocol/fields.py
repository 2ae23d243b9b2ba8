"""What some fields of messages are made of."""

from __future__ import annotations

#: (slice index, version, ranges): ranges are start, stop, start, stop, … in elements from the start
#: of the slice, ascending; none means the whole slice. In a push ``version`` is the one last read.
Part = tuple[int, int, tuple[int, ...]]

#: (incarnation, attempts): which pushes of a worker make its part of a committed step.
Contributor = tuple[bytes, tuple[int, ...]]
