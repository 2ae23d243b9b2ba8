"""The codec: what is encoded comes back, and no bytes make the decoder do anything but refuse them."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import fields
from importlib import import_module

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.strategies import NOISE, almost, as_bytes, comparable, messages, mutated, placements
from tests.imports import dotted, modules
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.core.protocol import wire
from zmqps.core.protocol.messages.large import Large
from zmqps.core.protocol.messages.saving import SaveStage
from zmqps.core.protocol.messages.training import Gradients
from zmqps.core.protocol.wire import decode, encode, peek
from zmqps.errors import LimitError, ProtocolError


def push_with(payload: object, *frames: bytes) -> list[bytes]:
    return [msgpack.packb([33, 7, 3, 1, 0, 0, 1, 0, 1, "raw", "raw", [], [[0, 5, []]], payload]), *frames]


# --- what is encoded comes back -----------------------------------------------------------------


@given(messages())
@settings(max_examples=60)
def test_a_message_survives_the_wire(message) -> None:  # type: ignore[no-untyped-def]
    frames = as_bytes(encode(message))
    again = decode(frames)
    assert comparable(again) == comparable(message)
    assert as_bytes(encode(again)) == frames


@pytest.mark.hypothesis
@for_each("cls", m.BY_KIND.values())
def test_every_kind_survives_the_wire(cls) -> None:  # type: ignore[no-untyped-def]
    @given(messages(cls))
    @settings(max_examples=3)
    def survives(message) -> None:  # type: ignore[no-untyped-def]
        assert comparable(decode(encode(message))) == comparable(message)

    survives()


def test_every_message_of_the_room_is_known_by_a_kind_of_its_own() -> None:
    the_room = [import_module(dotted(module.path)) for module in modules("zmqps/core/protocol/")]
    classes = [thing for module in the_room for thing in vars(module).values() if isinstance(thing, type)]
    assert {cls for cls in classes if issubclass(cls, m.Message)} == {m.Message, Gradients, Large, *m.BY_KIND.values()}
    assert Large.kind not in m.BY_KIND, "it travels as what it is"


def test_kinds_are_unique_and_every_annotation_has_a_check() -> None:
    assert all(cls.kind == kind for kind, cls in m.BY_KIND.items())
    annotations = {str(f.type) for cls in m.BY_KIND.values() for f in fields(cls)}  # type: ignore[arg-type]
    assert annotations == set(wire.CHECKS) | {"Payload"}


@for_each("stage", [0, 3])
def test_a_state_is_decoded_as_a_member_of_its_enum(stage: int) -> None:
    saved = decode([msgpack.packb([m.Saved.kind, 1, 2, stage, {}])])
    assert isinstance(saved, m.Saved)
    assert saved.stage is SaveStage(stage)


@for_each("stage", [4, -1, 1.0, True, "kept", None])
def test_a_state_that_does_not_exist_is_refused(stage: object) -> None:
    with pytest.raises(ProtocolError, match="is not a SaveStage"):
        decode([msgpack.packb([m.Saved.kind, 1, 2, stage, {}])])


def test_a_message_tells_its_name_and_request_without_being_decoded() -> None:
    assert peek(encode(m.Waiting(7, "for w1"))) == ("Waiting", 7)
    assert peek(encode(m.Shutdown("the job is finished"))) == ("Shutdown", 0)
    assert peek(encode(m.Left())) == ("Left", 0)


def test_what_is_short_is_shown_whole_in_an_error_and_what_is_long_in_part() -> None:
    for value, shown in (("abc", "'abc'"), (["x" * 30] * 9, r".{57}\.\.\.")):
        with pytest.raises(ProtocolError, match=rf"header is not \[kind, field, ...\]: {shown}(\n|$)"):
            decode([msgpack.packb(value)])


def test_a_small_payload_travels_inside_the_header() -> None:
    pieces = [np.zeros(wire.INLINE_NBYTES // 8, "<f4"), np.ones(wire.INLINE_NBYTES // 8, "<f4")]
    assert len(encode(m.Values(1, "raw", (), (), pieces))) == 1
    assert len(encode(m.Values(1, "raw", (), (), [*pieces, b"x"]))) == 4


def test_a_large_payload_is_neither_copied_on_the_way_out_nor_on_the_way_in() -> None:
    array = np.zeros(wire.INLINE_NBYTES, "<f4")
    header, frame = encode(m.Values(1, "raw", (), (), (array,)))
    assert np.shares_memory(np.frombuffer(frame, "<f4"), array)
    message = decode([header, frame])
    assert isinstance(message, m.Values)
    assert np.shares_memory(np.frombuffer(message.payload[0], "<f4"), array)


def test_empty_buffers_do_not_travel() -> None:
    message = decode(encode(m.Values(1, "raw", (), (), (b"", np.empty(0, "<f8"), np.empty((0, 3))))))
    assert isinstance(message, m.Values)
    assert message.payload == ()


def test_a_duration_may_be_sent_as_an_integer() -> None:
    incarnation = bytes(16)
    welcome = decode([msgpack.packb([2, 1, incarnation, "server-0", 0, 1, 10, 4, 1, [], b"", 0])])
    assert comparable(welcome)[5:7] == (1.0, 10.0)


def test_words_for_people_are_cut_to_what_a_receiver_takes() -> None:
    for message in (m.Waiting(1, "x" * 5000), m.Error(1, 1, "ü" * 5000, {"reason": "y"})):
        again = decode(encode(message))
        assert isinstance(again, (m.Waiting, m.Error))
        assert len(again.text) == wire.MAX_TEXT_CHARS
        assert again.text == message.text[: wire.MAX_TEXT_CHARS - 1] + "…"


HELLO = ["zmqps", 7, "worker", bytes(16), "name", "host", 1, "", []]


@for_each(
    "appended, job",
    [
        ([], ""),
        (["resnet"], "resnet"),
        (["resnet", b""], "resnet"),
        (["resnet", b"", 0, b"", b"", 0, 0, b"", {"a": b"x"}, [[[]]], None], "resnet"),
    ],
)
def test_a_hello_of_any_version_can_be_read(appended: list[object], job: str) -> None:
    message = decode([msgpack.packb([1, *HELLO, *appended])])
    assert message == m.Hello("zmqps", 7, "worker", bytes(16), "name", "host", 1, job=job)


# --- what the encoder refuses -------------------------------------------------------------------


def test_the_encoder_sends_nothing_beyond_the_limits() -> None:
    with pytest.raises(LimitError, match="header"):
        encode(m.Status(1, {"text": "x" * wire.MAX_HEADER_NBYTES}))
    with pytest.raises(LimitError, match="number of array frames"):
        encode(m.Values(1, "raw", (), (), [b"xx"] * (wire.MAX_FRAMES + 1)))
    with pytest.raises(LimitError, match="size of an array frame"):
        encode(m.Values(1, "raw", (), (), [np.empty(wire.MAX_FRAME_NBYTES + 1, np.uint8)]))


# --- what the decoder refuses -------------------------------------------------------------------

NESTED = b"\x91" * 2000
MALFORMED = {
    "no frames": ([], ProtocolError),
    "an empty frame": ([b""], ProtocolError),
    "no list": ([msgpack.packb({"kind": 1})], ProtocolError),
    "an empty list": ([msgpack.packb([])], ProtocolError),
    "a kind that is true": ([msgpack.packb([True])], ProtocolError),
    "a kind nobody knows": ([msgpack.packb([255])], ProtocolError),
    "too few fields": ([msgpack.packb([35, 1, []])], ProtocolError),
    "too many fields": ([msgpack.packb([35, 1, [], [], []])], ProtocolError),
    "a hello without its first nine fields": ([msgpack.packb([1, *HELLO[:-1]])], ProtocolError),
    "a hello of a job that is a number": ([msgpack.packb([1, *HELLO, 7])], ProtocolError),
    "a welcome with a field more": ([msgpack.packb([2, 2, bytes(16), "s", 0, 1, 10, 4, 1, [], "x"])], ProtocolError),
    "something behind the header": ([msgpack.packb([6]) + b"\x00"], ProtocolError),
    "a header cut short": ([msgpack.packb([35, 1, [], []])[:-1]], ProtocolError),
    "text that is not utf-8": ([b"\x92\x09\xa2\xff\xfe"], ProtocolError),
    "an extension type": ([msgpack.packb([9, msgpack.ExtType(3, b"x")])], ProtocolError),
    "a timestamp": ([msgpack.packb([9, msgpack.Timestamp(1, 2)])], ProtocolError),
    "a broken timestamp": ([b"\x92\x09\xd4\xff\x00"], ProtocolError),
    "the unused msgpack byte": ([b"\x92\x09\xc1"], ProtocolError),
    "a negative number": ([msgpack.packb([15, -1])], ProtocolError),
    "a number too large": ([msgpack.packb([13, 1 << 32, 0])], ProtocolError),
    "a truth value for a number": ([msgpack.packb([15, True])], ProtocolError),
    "a float for a number": ([msgpack.packb([15, 1.0])], ProtocolError),
    "a text too long": ([msgpack.packb([9, "x" * (wire.MAX_TEXT_CHARS + 1)])], LimitError),
    "bytes for a text": ([msgpack.packb([9, b"x"])], ProtocolError),
    "a duration that is no number": ([msgpack.packb([8, "w", 0, "n", bytes(16), float("nan")])], ProtocolError),
    "a negative duration": ([msgpack.packb([8, "w", 0, "n", bytes(16), -0.5])], ProtocolError),
    "an incarnation of 15 bytes": ([msgpack.packb([8, "w", 0, "n", bytes(15), 0])], ProtocolError),
    "a map with a number as key": ([msgpack.packb([3, {1: 2}])], ProtocolError),
    "a map with bytes as key": ([msgpack.packb([3, {b"a": 2}])], ProtocolError),
    "bytes in a map": ([msgpack.packb([3, {"a": b"x"}])], ProtocolError),
    "a list in the facts of an error": ([msgpack.packb([7, 0, 1, "", {"a": []}])], ProtocolError),
    "lists in lists in lists": ([msgpack.packb([3, {"a": [[[[[[[[1]]]]]]]]}])], LimitError),
    "lists beyond the stack": ([b"\x92\x03\x81\xa1a" + NESTED + b"\x00"], ProtocolError),
    "a header that is lists only": ([b"\x91" * 1020 + b"\x00"], ProtocolError),
    "lists where a number belongs": ([b"\x92\x0f" + b"\x91" * 1000 + b"\x00"], ProtocolError),
    "a part of two": ([msgpack.packb([34, 1, 1, 0, 0, "raw", [[0, 5]]])], ProtocolError),
    "a range without a stop": ([msgpack.packb([34, 1, 1, 0, 0, "raw", [[0, 5, [1]]]])], ProtocolError),
    "a range that is empty": ([msgpack.packb([34, 1, 1, 0, 0, "raw", [[0, 5, [1, 1]]]])], ProtocolError),
    "ranges out of order": ([msgpack.packb([34, 1, 1, 0, 0, "raw", [[0, 5, [4, 6, 1, 2]]]])], ProtocolError),
    "a contributor of three": ([msgpack.packb([22, 1, 0, [[bytes(16), [1], 1.0]]])], ProtocolError),
    "a contributor that is a map": ([msgpack.packb([22, 1, 0, [{"worker": 1}]])], ProtocolError),
    "a contributor with a short incarnation": ([msgpack.packb([22, 1, 0, [[bytes(15), [1]]]])], ProtocolError),
    "an attempt below zero": ([msgpack.packb([22, 1, 0, [[bytes(16), [-1]]]])], ProtocolError),
    "frames behind a message without payload": ([msgpack.packb([6]), b"x"], ProtocolError),
    "frames behind a payload inside the header": (push_with(b"1234", b"1234"), ProtocolError),
    "a payload inside the header too large": (push_with(bytes(wire.INLINE_NBYTES + 1)), LimitError),
    "a payload that is a text": (push_with("1234"), ProtocolError),
    "fewer frames than announced": (push_with([4, 4], b"1234"), ProtocolError),
    "more frames than announced": (push_with([4], b"1234", b"1234"), ProtocolError),
    "a frame shorter than announced": (push_with([8], b"1234"), ProtocolError),
    "a frame longer than announced": (push_with([2], b"1234"), ProtocolError),
    "an announced size below zero": (push_with([-4], b"1234"), ProtocolError),
    "too many frames": (push_with([0] * (wire.MAX_FRAMES + 1), *[b""] * (wire.MAX_FRAMES + 1)), LimitError),
    "a header too large": ([bytes(wire.MAX_HEADER_NBYTES + 1)], LimitError),
    "a frame too large": (push_with([wire.MAX_FRAME_NBYTES + 1], bytes(wire.MAX_FRAME_NBYTES + 1)), LimitError),
}


@for_each("frames, error", MALFORMED.values(), ids=MALFORMED)
def test_the_decoder_refuses(frames, error) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ProtocolError) as caught:
        decode(frames)
    assert type(caught.value) is error
    assert len(str(caught.value)) < 400, "an error must not carry what a peer sent at length"


def refused_or_sound(frames: list[bytes]) -> None:
    try:
        message = decode(frames)
    except ProtocolError:
        return
    assert comparable(decode(encode(message))) == comparable(message) or "nan" in repr(message)


@given(NOISE)
@example([b"\xdd\xff\xff\xff\xff"])
@example([b"\xc6\xff\xff\xff\xff"])
@settings(max_examples=120)
def test_noise_is_a_message_or_a_protocol_error(frames) -> None:  # type: ignore[no-untyped-def]
    refused_or_sound(frames)


@given(mutated())
@settings(max_examples=60)
def test_a_damaged_message_is_a_message_or_a_protocol_error(frames) -> None:  # type: ignore[no-untyped-def]
    refused_or_sound(frames)


@given(almost())
@settings(max_examples=60)
def test_fields_of_the_wrong_type_are_a_protocol_error(frames) -> None:  # type: ignore[no-untyped-def]
    refused_or_sound(frames)


@given(messages(m.Push, m.Pull, m.Ack, m.Hello, m.Error), st.data())
def test_a_message_cut_short_is_a_protocol_error(message, data) -> None:  # type: ignore[no-untyped-def]
    header = bytes(encode(message)[0])
    with pytest.raises(ProtocolError):
        decode([header[: data.draw(st.integers(0, len(header) - 1))]])


# --- what a header may cost ---------------------------------------------------------------------

#: Small objects that are large once they are decoded.
GREEDY = {
    "empty maps": b"\x80",
    "maps": b"\x81\xa0\xc0",
    "maps with a length of their own": b"\xde\x00\x01\xa0\xc0",
    "empty lists": b"\x90",
    "lists": b"\x91\xc0",
    "lists with a length of their own": b"\xdc\x00\x00",
    "negative numbers": b"\xe0",
    "numbers": b"\xcd\x12\x34",
    "texts": b"\xa2xy",
    "bytes": b"\xc4\x02xy",
}


@for_each("kind", sorted(m.BY_KIND))
def test_a_header_is_as_large_as_its_kind_needs(kind) -> None:  # type: ignore[no-untyped-def]
    limit = wire.HEADER_NBYTES.get(kind, wire.MAX_SHORT_HEADER_NBYTES)
    with pytest.raises(LimitError, match="size of the header"):
        decode([bytes([0x92, kind]) + bytes(limit - 1)])
    with pytest.raises(ProtocolError) as caught:
        decode([bytes([0x92, kind]) + bytes(limit - 2)])
    assert type(caught.value) is ProtocolError, "something behind the header"


@given(placements(), st.integers(1, 3))
def test_a_header_about_a_shard_may_be_as_large_as_one_that_names_all_of_it_piece_by_piece(placement, frames) -> None:  # type: ignore[no-untyped-def]
    largest, most = (1 << 64) - 1, (1 << 32) - 1
    for slices in placement.slices:
        segments = [(most - 1, most) * len(slice_.segments) for slice_ in slices]  # as many bytes as any
        parts = [[most, largest, bounds] for bounds in segments]
        lengths = [wire.MAX_FRAME_NBYTES] * (frames * len(parts))
        numbers = [largest] * 6
        header = msgpack.packb([m.Push.kind, *numbers, 1, 1, "c" * 2000, "c" * 2000, parts, lengths])
        assert len(header) <= wire.data_header_nbytes(len(slices), sum(map(len, segments)) // 2)


def test_a_header_with_more_than_there_is_to_say_about_a_shard_is_refused() -> None:
    frames = encode(m.Pull(1, 1, 0, 0, "raw", [(0, 0, ())] * 2000))
    assert isinstance(decode(frames, lambda: len(frames[0])), m.Pull)
    with pytest.raises(LimitError) as caught:
        decode(frames, lambda: len(frames[0]) - 1)
    assert caught.value.limit == len(frames[0]) - 1
    assert isinstance(decode(encode(m.Shutdown("x" * wire.MAX_TEXT_CHARS)), lambda: 1), m.Shutdown)


@for_each("unit", GREEDY.values(), ids=GREEDY)
@for_each("kind", [m.Error.kind, m.Hello.kind])
def test_the_worst_header_takes_a_small_multiple_of_its_bytes(kind, unit) -> None:  # type: ignore[no-untyped-def]
    count = (min(wire.HEADER_NBYTES[kind], 4 * wire.MAX_SHORT_HEADER_NBYTES) - 8) // len(unit)
    header = bytes([0x92, kind, 0xDD]) + struct.pack(">I", count) + unit * count
    large = len(header) > wire.MAX_SHORT_HEADER_NBYTES
    assert peak_nbytes_of_decoding([header]) < (1.1 * wire.MAX_GROWTH if large else 100) * len(header) + 100_000


def init_of(job: object) -> bytes:
    return msgpack.packb([m.Init.kind, 1, job])


@for_each("over", [-1, 0, 1])
def test_a_large_header_is_read_in_pieces_to_the_same(over) -> None:  # type: ignore[no-untyped-def]
    fill = 5 * wire.PIECE_NBYTES + over - len(init_of({"x": "", "y": [1.5, [], {"z": None}]})) - 4
    job = {"x": "é" * (fill // 2), "y": [1.5, [], {"z": None}]}
    header = init_of(job)
    assert decode([header]) == m.Init(1, job)
    for damaged in (header[:-1], header + b"\x00", header + header, bytes(len(header))):
        with pytest.raises(ProtocolError):
            decode([damaged])


def test_other_threads_have_turns_while_a_large_header_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []

    class Unpacker(msgpack.Unpacker):  # type: ignore[misc]
        def feed(self, piece: memoryview) -> None:
            fed.append(piece.nbytes)
            super().feed(piece)

    monkeypatch.setattr(msgpack, "Unpacker", Unpacker)
    header = init_of({"parameters": [["w", [1], "float32"]] * 30_000})
    decode([header])
    assert sum(fed) == len(header)
    assert max(fed) <= wire.PIECE_NBYTES


@for_each("maps", [1, 8])
def test_the_maps_of_a_job_have_so_many_entries_at_most(maps) -> None:  # type: ignore[no-untyped-def]
    most = wire.MAX_INIT_ENTRIES
    entries = {f"{i:06x}": 0 for i in range(most // maps)}
    decode([init_of({"x": [entries] * (maps - 1)})])
    with pytest.raises(ProtocolError, match=str(most)):
        decode([init_of({"x": [entries] * maps, "y": 0})])


def test_what_honest_nodes_send_is_never_too_greedy() -> None:
    rng = np.random.default_rng(5)
    numbers = rng.integers(0, 1 << 32, 60_000).tolist()
    parts = [(n, n, ()) for n in numbers]
    assert isinstance(decode(encode(m.Pull(1, 1, 0, 0, "raw", parts))), m.Pull)
    assert isinstance(decode(encode(m.Ack(1, numbers, numbers))), m.Ack)
    bounds = tuple(np.unique(rng.integers(0, 1 << 32, 400_000))[:399_000].tolist())
    assert isinstance(decode(encode(m.Pull(1, 1, 0, 0, "raw", [(0, 0, bounds)]))), m.Pull)
    job = {"parameters": [[f"w{n}", [n, 3], "float32"] for n in range(200_000)], "slices": numbers}
    assert isinstance(decode(encode(m.Init(1, job))), m.Init)


# --- memory -------------------------------------------------------------------------------------


def peak_nbytes_of_decoding(frames: list[bytes]) -> int:
    decode(encode(m.Left()))  # so that nothing is loaded while we measure
    tracemalloc.start()
    try:
        decode(frames)
    except ProtocolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@for_each("claim", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"], ids=["list", "map", "text", "bytes", "ext"])
def test_a_size_that_is_merely_claimed_allocates_nothing(claim) -> None:  # type: ignore[no-untyped-def]
    header = b"\x92\x03" + claim + struct.pack(">I", 0xFFFF_FFF0)
    assert peak_nbytes_of_decoding([header]) < 100_000


def test_claims_inside_claims_allocate_in_proportion_to_the_header_only() -> None:
    padding = 1 << 20
    claims = (b"\xdd" + struct.pack(">I", padding)) * 480
    assert peak_nbytes_of_decoding([b"\x92\x03" + claims + bytes(padding + 1)]) < 100 * padding


def test_an_announced_frame_allocates_nothing() -> None:
    assert peak_nbytes_of_decoding(push_with([1 << 40] * 100)) < 100_000
    assert peak_nbytes_of_decoding(push_with([1 << 40], b"1234")) < 100_000


# --- what a header takes once it is decoded --------------------------------------------------------


def test_an_empty_header_takes_nothing() -> None:
    assert wire.decoded_nbytes(b"") == 0


@for_each("value, at_least", [([[]] * 1000, 56_000), ([{}] * 1000, 64_000), ([-1] * 1000, 0)])
def test_what_takes_much_of_little_is_counted(value: list[object], at_least: int) -> None:
    packed = msgpack.packb(value)
    assert at_least <= wire.decoded_nbytes(packed) <= 250 * len(packed)


def test_plain_text_costs_little() -> None:
    assert wire.decoded_nbytes(b"a plain text" * 100) == 0
