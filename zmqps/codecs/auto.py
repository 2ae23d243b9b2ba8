"""Codecs that a job may choose from as it goes: what is allowed, not what is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError, ProtocolError
from .base import Codec
from .registry import CODECS, parse

NAME = "auto"
#: Each is tried before it is judged.
MOST_ALLOWED = 8


@dataclass(frozen=True)
class Auto:
    """See `auto`.

    Attributes
    ----------
    allowed
        Texts of codecs beside raw, the one to be preferred first.
    """

    allowed: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """As a text, which `parse_auto` reads: ``"auto:bf16,int8:block=1024"``."""
        return f"{NAME}:{','.join(self.allowed)}" if self.allowed else NAME


def auto(*allowed: Codec | str) -> Auto:
    """Let each worker choose how its gradients travel: raw, or in one of these codecs where that is faster.

    It measures how long pushes take, each server by itself, and what encoding costs on its processor. Nothing is lost
    but by codecs that are named here: of none, gradients travel raw.

    Parameters
    ----------
    *allowed : Codec or str
        Codecs, or their texts. Of two that are about as fast the earlier one is chosen, so the most exact one comes
        first: ``auto("bf16", "int8")``, or as a text ``"auto:bf16,int8"``.
    """
    texts: list[str] = []
    for codec in allowed:
        try:
            text = codec.spec if isinstance(codec, Codec) else parse(codec).spec
        except (ProtocolError, TypeError) as error:
            raise ConfigurationError(f"auto chooses among codecs, say auto('bf16', 'int8'): {error}") from None
        if text in texts:
            raise ConfigurationError(f"auto is given {text!r} twice")
        texts.append(text)
    if len(texts) > MOST_ALLOWED:
        raise ConfigurationError(f"auto chooses among at most {MOST_ALLOWED} codecs, not {len(texts)}")
    return Auto(tuple(text for text in texts if text != "raw"))


def parse_auto(text: str) -> Auto | None:
    """Return what a text such as ``"auto:bf16,int8"`` allows; None where it names a codec, or nothing.

    Raises
    ------
    ConfigurationError
        It allows what is no codec.
    """
    name, colon, rest = text.partition(":")
    if name != NAME:
        return None
    codecs: list[str] = []
    for item in rest.split(",") if colon else ():
        if codecs and item.partition(":")[0] not in CODECS:  # a further option of the one before
            codecs[-1] += f",{item}"
        else:
            codecs.append(item)
    return auto(*codecs)
