"""What a codec leaves out is sent with a later gradient, once; and what is sent again is what was sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.core.machines import job, placement
from zmqps.codecs import parse
from zmqps.core.protocol.encoding import CODING, RAW
from zmqps.core.worker.transfer import Packer, PushTransfer, Request, Source, plan

SIZE = 1000
TOPK = "topk:fraction=0.1"


class Sender:
    """Packs pushes of one parameter, in two slices, and adds up what a server decodes."""

    def __init__(self) -> None:
        spec = job("w", size=SIZE)
        self.cargoes = plan(placement(spec, 1, 2000))
        self.packer = Packer(CODING)
        self.came = np.zeros(SIZE)

    def push(self, gradient: np.ndarray[Any, Any], codec: str, *, blobs: bool = False) -> PushTransfer:
        push = PushTransfer(cargoes=self.cargoes, source=Source(arrays=[gradient], codec=codec))
        push.blobs = {} if blobs else None
        for number, cargo in enumerate(self.cargoes[0]):
            request = Request(transfer=push, cargoes=(cargo,), nbytes=cargo.nbytes, seq=number, codec=codec)
            text, payload = self.packer.pack(request, push.source)
            again, same = self.packer.pack(request, push.source)
            assert (text, [b.tobytes() for b in payload]) == (again, [b.tobytes() for b in same])
            size = cargo.nbytes // 4
            array = payload[0] if text == RAW else parse(text).decode(payload[0], size, "float32")[0]
            self.came[cargo.slice.start : cargo.slice.start + size] += array
        return push

    @property
    def kept(self) -> np.ndarray[Any, Any]:
        whole = np.zeros(SIZE)
        for cargo in self.cargoes[0]:
            left = self.packer.left_out.get(cargo.slice.index, np.zeros(cargo.slice.size))
            whole[cargo.slice.start : cargo.slice.start + left.size] = left
        return whole


def whole_numbers(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-9, 10, SIZE).astype(np.float32)


def test_what_one_push_leaves_out_goes_with_the_next_in_that_codec() -> None:
    sender, given = Sender(), np.zeros(SIZE)
    for seed in range(3):
        sender.push(whole_numbers(seed), TOPK)
        given += whole_numbers(seed)
        np.testing.assert_array_equal(sender.came + sender.kept, given)
    assert sender.kept.any()


def test_a_push_in_another_codec_leaves_for_later_what_was_left_out() -> None:
    sender = Sender()
    sender.push(whole_numbers(0), TOPK)
    kept = sender.kept
    sender.push(whole_numbers(1), RAW)
    np.testing.assert_array_equal(sender.kept, kept)
    np.testing.assert_array_equal(sender.came + kept, whole_numbers(0) + whole_numbers(1))


def test_what_may_have_to_be_brought_again_is_kept_as_it_was_sent() -> None:
    sender = Sender()
    sender.push(whole_numbers(0), TOPK)
    came = sender.came.copy()
    push = sender.push(whole_numbers(1), TOPK, blobs=True)
    assert push.blobs is not None
    brought = [parse(TOPK).decode(push.blobs[c][1], c.nbytes // 4, "float32")[0] for c in sender.cargoes[0]]
    assert not np.array_equal(np.concatenate(brought), whole_numbers(1)), "it has what was left out before"
    np.testing.assert_array_equal(np.concatenate(brought), sender.came - came)


def test_gradients_are_not_written_to() -> None:
    sender, gradient = Sender(), whole_numbers(0)
    gradient.flags.writeable = False
    for codec in (TOPK, RAW, TOPK, "bf16"):
        sender.push(gradient, codec)
