"""What a job allows its workers to choose from, as a text and back."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.codecs.cases import SPECS
from zmqps import codecs
from zmqps.codecs import Auto, auto, parse_auto
from zmqps.errors import ConfigurationError


def test_a_text_allows_codecs_with_their_options() -> None:
    assert parse_auto("auto") == Auto(())
    assert parse_auto("auto:bf16,int8") == auto("bf16", "int8") == auto(codecs.bf16(), codecs.int8())
    assert parse_auto("auto:int8:block=512,stochastic,topk:fraction=0.05") == auto(
        codecs.int8(512, stochastic=True), codecs.topk(0.05)
    )
    assert auto("raw", "bf16").allowed == ("bf16",)
    assert parse_auto("bf16") is None
    assert parse_auto("raw") is None


@pytest.mark.parametrize("text", ["auto:", "auto:zip", "auto:bf16,", "auto:bf16,bf16", "auto:auto", "auto:block=3"])
def test_a_text_that_allows_no_codec_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="auto"):
        parse_auto(text)


def test_no_more_are_allowed_than_can_be_tried() -> None:
    with pytest.raises(ConfigurationError, match="at most 8"):
        auto(*(f"int8:block={block}" for block in range(16, 25)))


@pytest.mark.parametrize("wrong", [1, None, b"bf16"])
def test_what_is_no_codec_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="auto"):
        auto(wrong)  # type: ignore[arg-type]


@hypothesis.given(st.lists(st.sampled_from([codecs.parse(spec).spec for spec in SPECS]), unique=True, max_size=8))
def test_what_is_allowed_comes_back_from_its_text(texts: list[str]) -> None:
    assert parse_auto(auto(*texts).spec) == auto(*texts)


def test_no_codec_is_called_auto() -> None:
    assert "auto" not in codecs.CODECS
