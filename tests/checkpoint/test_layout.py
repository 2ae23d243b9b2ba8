"""Where elements lie: rectangles that are as few as can be, and no byte of a file twice or never."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.saved import SHAPES, jobs, placements
from zmqps.checkpoint.layout import ShardLayout, blocks
from zmqps.core.job.keyspace import KeySpace


@given(SHAPES, st.data())
def test_blocks_are_rectangles_that_follow_one_another(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    numbers = np.arange(size).reshape(shape)
    found = []
    for block in blocks(shape, start, stop):
        where = tuple(slice(o, o + n) for o, n in zip(block.offsets, block.shape, strict=True))
        assert block.start == start + len(found)
        found += numbers[where].ravel().tolist()
    assert found == list(range(start, stop))


def test_an_interval_of_whole_rows_is_one_block() -> None:
    assert [b[:2] for b in blocks((6, 4, 2), 8, 24)] == [((1, 0, 0), (2, 4, 2))]
    assert [b[:2] for b in blocks((1, 4, 2), 2, 6)] == [((0, 1, 0), (1, 2, 2))]
    assert [b[:2] for b in blocks((6, 4), 3, 6)] == [((0, 3), (1, 1)), ((1, 0), (1, 2))]
    assert [b[:2] for b in blocks((), 0, 1)] == [((), ())]
    assert [b[:2] for b in blocks((0, 3), 0, 0)] == [((0, 0), (0, 3))]
    assert blocks((2, 3), 4, 4) == []


@given(st.data())
def test_every_byte_of_a_file_is_written_once(data: st.DataObject) -> None:
    spec = data.draw(jobs())
    placement = data.draw(placements(KeySpace(spec.parameters)))
    slots = data.draw(st.sampled_from([(), ("m", "v")]))
    for index, slices in enumerate(placement.slices):
        layout = ShardLayout(placement, index, slots)
        written = [np.zeros(file.nbytes, int) for file in layout.files]
        for count, file in zip(written, layout.files, strict=True):
            count[: len(file.header)] += 1
            assert len(file.header) % 64 == 0
        for slice_ in slices:
            itemsize = placement.keyspace.tables[slice_.table].dtype.itemsize
            for array in range(1 + len(slots)):
                end = slice_.start
                for extent in layout.extents(array, slice_.table, slice_.start, slice_.stop):
                    assert extent.start == end
                    assert extent.offset % itemsize == 0
                    written[extent.file][extent.offset : extent.offset + extent.size * itemsize] += 1
                    end += extent.size
                assert end == slice_.stop
        assert all((count == 1).all() for count in written)
