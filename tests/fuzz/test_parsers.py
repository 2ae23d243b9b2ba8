"""Whatever stands in what we read: a value, or a typed error, soon and without much memory."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.fuzz.parsers import PARSERS, mutated
from tests.tables import for_each

#: What reading a few kB takes; seconds of this process, however busy the machine is.
MOST_NBYTES, MOST_S = 32 << 20, 4.0


def feed(name: str, data: bytes) -> object:
    """Have a parser read some bytes; return what it returns, or the error that it may raise."""
    parser = PARSERS[name]
    with tempfile.TemporaryDirectory() as place:
        began = time.process_time()
        tracemalloc.start()
        try:
            return parser.feed(data, Path(place))
        except parser.refuses as error:
            return error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < MOST_NBYTES, f"{peak:,} bytes for {len(data):,}"
            assert time.process_time() - began < MOST_S


@for_each("name", PARSERS)
def test_what_is_accepted_is_read(name: str, tmp_path: Path) -> None:
    for number, data in enumerate(PARSERS[name].good()):
        place = tmp_path / name / str(number)
        place.mkdir(parents=True)
        PARSERS[name].feed(data, place)


@pytest.mark.hypothesis
@for_each("name", PARSERS)
def test_whatever_stands_there_is_read_or_refused_with_a_typed_error(name: str) -> None:
    @given(mutated(PARSERS[name].good()))
    @settings(max_examples=15)
    def is_read_or_refused(data: bytes) -> None:
        feed(name, data)

    is_read_or_refused()
