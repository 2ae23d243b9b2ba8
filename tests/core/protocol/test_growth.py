from __future__ import annotations

import msgpack
import pytest

from zmqps.core.protocol.growth import decoded_nbytes


def test_an_empty_header_takes_nothing() -> None:
    assert decoded_nbytes(b"") == 0


@pytest.mark.parametrize(("value", "at_least"), [([[]] * 1000, 56_000), ([{}] * 1000, 64_000), ([-1] * 1000, 0)])
def test_what_takes_much_of_little_is_counted(value: list[object], at_least: int) -> None:
    packed = msgpack.packb(value)
    assert at_least <= decoded_nbytes(packed) <= 250 * len(packed)


def test_plain_text_costs_little() -> None:
    assert decoded_nbytes(b"a plain text" * 100) == 0
