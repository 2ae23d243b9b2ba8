"""A codec's text: what is written is read, and nothing else is."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.codecs.cases import SPECS
from zmqps import codecs
from zmqps.codecs.registry import MAX_SPEC_CHARS
from zmqps.errors import ConfigurationError, ProtocolError

BLOCKS = st.integers(16, 1 << 20)
CODECS = st.one_of(
    st.sampled_from([codecs.raw(), codecs.bf16(), codecs.fp16()]),
    st.builds(codecs.int8, BLOCKS, st.booleans()),
    st.builds(codecs.topk, st.floats(1e-6, 1.0)),
    st.builds(codecs.onebit, BLOCKS),
    st.builds(codecs.twobit, BLOCKS),
)


@hypothesis.given(CODECS)
def test_a_codec_is_read_back_from_its_text(codec: codecs.Codec) -> None:
    assert len(codec.spec) <= MAX_SPEC_CHARS
    assert codecs.parse(codec.spec) == codec


@pytest.mark.parametrize("spec", SPECS)
def test_a_text_is_written_back_as_it_was(spec: str) -> None:
    assert codecs.parse(spec).spec == spec


@pytest.mark.parametrize("name", codecs.CODECS)
def test_a_name_alone_is_the_codec_with_its_defaults(name: str) -> None:
    assert codecs.parse(name) == getattr(codecs, name)()


@pytest.mark.parametrize(
    "text",
    [
        *("", "gzip", "RAW", " raw", "raw ", "raw:", "raw:x=1", "int8:", "int8:block", "int8:block=", "int8:block=15"),
        *(
            "int8:block=1048577",
            "int8:block=1e3",
            "int8:block=-16",
            "int8:block=+32",
            "int8:block= 32",
            "int8:block=3_2",
        ),
        *("int8:block=32,block=32", "int8:block=32,", "int8:stochastic=1", "int8:stochastic=True", "int8:name=x"),
        *("int8:block=\u0663\u0662", "int8:block=99999999999999999999", "int8:block=32:block=32", "int8:spec=1"),
        *("topk:fraction=0", "topk:fraction=1.5", "topk:fraction=nan", "topk:fraction=inf", "topk:fraction=1e999"),
        *("topk:fraction=--1", "topk:fraction=0.0.1", "topk:fraction=-0.1", "topk:fraction=e", "topk:error_feedback=1"),
        "topk:fraction=0." + "0" * 60 + "1",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        codecs.parse(text)


@hypothesis.given(st.one_of(st.text(), st.text("rawint8topk:=,.0123456789block")))
def test_any_text_is_a_codec_or_an_error(text: str) -> None:
    try:
        assert codecs.parse(codecs.parse(text).spec) == codecs.parse(text)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda: codecs.int8(block=15),
        lambda: codecs.int8(block=16.0),
        lambda: codecs.int8(block=True),
        lambda: codecs.int8(block="16"),
        lambda: codecs.int8(stochastic=1),
        lambda: codecs.topk(0.0),
        lambda: codecs.topk(float("nan")),
        lambda: codecs.topk(None),
        lambda: codecs.onebit(1 << 21),
    ],
)
def test_options_out_of_range_are_refused(call) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        call()


def test_an_error_says_what_would_be_right() -> None:
    with pytest.raises(ConfigurationError, match="'int8': block must be a whole number from 16 to"):
        codecs.int8(block=1)
    with pytest.raises(ProtocolError, match="known here are raw, bf16, fp16, int8, topk, onebit, twobit"):
        codecs.parse("zip")
