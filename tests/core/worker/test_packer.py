"""What was left out by one codec is sent by the next one, once; and what is sent again is what was sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.core.machines import job, placement
from zmqps.codecs import parse
from zmqps.core.protocol.encoding import CODING, RAW
from zmqps.core.worker.outbox import Request
from zmqps.core.worker.packer import Packer
from zmqps.core.worker.plan import plan
from zmqps.core.worker.transfer import PushTransfer, Source

SIZE = 1000
TOPK = "topk:fraction=0.1"


class Sender:
    """Packs pushes of one parameter, in two slices, and adds up what a server decodes."""

    def __init__(self) -> None:
        spec = job("w", size=SIZE)
        self.cargoes = plan(placement(spec, 1, 2000))
        self.packer = Packer(CODING)
        self.came = np.zeros(SIZE)

    def push(
        self, gradient: np.ndarray[Any, Any], codec: str, *, chosen: bool = True, blobs: bool = False
    ) -> PushTransfer:
        push = PushTransfer(cargoes=self.cargoes, source=Source(arrays=[gradient], codec=codec))
        push.blobs = {} if blobs else None
        for number, cargo in enumerate(self.cargoes[0]):
            request = Request(
                transfer=push, cargoes=(cargo,), nbytes=cargo.nbytes, seq=number, codec=codec, chosen=chosen
            )
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


@pytest.mark.parametrize("after", [RAW, "bf16", "fp16"])
def test_a_codec_of_choice_sends_what_the_one_before_has_left_out(after: str) -> None:
    sender, given = Sender(), np.zeros(SIZE)
    for seed in range(3):
        sender.push(whole_numbers(seed), TOPK)
        given += whole_numbers(seed)
        np.testing.assert_array_equal(sender.came + sender.kept, given)
    assert sender.kept.any()
    sender.push(whole_numbers(3), after)
    given += whole_numbers(3)
    np.testing.assert_array_equal(sender.came, given)
    assert sender.packer.left_out == {}
    sender.push(whole_numbers(4), after)
    np.testing.assert_array_equal(sender.came, given + whole_numbers(4))


def test_a_codec_that_a_call_names_leaves_for_later_what_was_left_out() -> None:
    sender = Sender()
    sender.push(whole_numbers(0), TOPK, chosen=False)
    kept = sender.kept
    sender.push(whole_numbers(1), RAW, chosen=False)
    np.testing.assert_array_equal(sender.kept, kept)
    np.testing.assert_array_equal(sender.came + kept, whole_numbers(0) + whole_numbers(1))


def test_what_may_have_to_be_brought_again_is_kept_as_it_was_sent() -> None:
    sender = Sender()
    sender.push(whole_numbers(0), TOPK)
    push = sender.push(whole_numbers(1), RAW, blobs=True)
    assert push.blobs is not None
    assert [text for text, _ in push.blobs.values()] == [RAW, RAW]
    brought = np.concatenate([push.blobs[cargo][1] for cargo in sender.cargoes[0]])
    assert not np.array_equal(brought, whole_numbers(1)), "it has what was left out before"
    np.testing.assert_array_equal(sender.came, whole_numbers(0) + whole_numbers(1))


def test_gradients_are_not_written_to() -> None:
    sender, gradient = Sender(), whole_numbers(0)
    gradient.flags.writeable = False
    for codec in (TOPK, RAW, TOPK, "bf16"):
        sender.push(gradient, codec)
