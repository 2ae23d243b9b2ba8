"""Numbers, durations and names in words, the same wherever they are shown."""

from __future__ import annotations

import math

from tests.tables import for_each
from zmqps.words import ago, joined, num_bytes, seconds

#: What each function says: the page's words are compared with it too.
SAID: dict[str, list[tuple[float, str]]] = {
    "seconds": [
        *(
            (0.0, "0 s"),
            (1e-6, "1 µs"),
            (12e-6, "12 µs"),
            (0.00099949, "999 µs"),
            (0.0009996, "1 ms"),
            (0.0034, "3.4 ms"),
        ),
        *((0.0034, "3.4 ms"), (0.9996, "1 s"), (1.0, "1 s"), (1.234, "1.23 s"), (42.4, "42.4 s"), (59.94, "59.9 s")),
        *((59.96, "1 min"), (60.0, "1 min"), (65.0, "1 min 5 s"), (119.7, "2 min"), (240.0, "4 min"), (3599.7, "1 h")),
        *((3661.0, "1 h 1 min"), (5400.0, "1 h 30 min"), (7500.0, "2 h 5 min"), (86390.0, "1 d"), (86400.0, "1 d")),
        *(
            (93600.0, "1 d 2 h"),
            (3.0 * 86400, "3 d"),
            (1e7, "115 d 18 h"),
            (1e300, "over 999 d"),
            (-0.002, "-2 ms"),
            (-65.0, "-1 min 5 s"),
        ),
    ],
    "ago": [
        *((0.0, "0.0 s ago"), (0.04, "0.0 s ago"), (0.3, "0.3 s ago"), (9.94, "9.9 s ago"), (9.96, "10 s ago")),
        *((42.4, "42 s ago"), (59.7, "1 min ago"), (65.2, "1 min 5 s ago"), (7500.0, "2 h 5 min ago")),
    ],
    "num_bytes": [
        *((0, "0 B"), (512, "512 B"), (999, "999 B"), (999.6, "1 kB"), (1000, "1 kB"), (1_054_000, "1.05 MB")),
        *(
            (2.5e6, "2.5 MB"),
            (999_600, "1 MB"),
            (123_456_789, "123 MB"),
            (5.3e9, "5.3 GB"),
            (7e12, "7 TB"),
            (2.0**63, "9.22 EB"),
        ),
    ],
}
CALLS = {"seconds": seconds, "ago": ago, "num_bytes": num_bytes}


@for_each("name", SAID)
def test_a_number_has_one_form(name: str) -> None:
    assert [(value, CALLS[name](value)) for value, _ in SAID[name]] == SAID[name]
    assert [CALLS[name](value) for value in (None, math.nan, math.inf, -math.inf)] == [""] * 4


def test_names_are_joined_into_a_sentence() -> None:
    assert [joined(names) for names in ([], ["a"], ["a", "b"], "abc")] == ["", "a", "a and b", "a, b and c"]
    assert joined("abcdefg") == "a, b, c, d, e and 2 more"
    assert joined(iter("abc"), last="or") == "a, b or c"
