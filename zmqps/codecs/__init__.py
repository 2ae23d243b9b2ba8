"""Codecs: gradients and parameters in fewer bytes.

A codec is named with its numbers, travels as a short text, and turns an array into a blob of bytes::

    from zmqps import codecs

    codec = codecs.int8(block=512)
    codecs.parse(codec.spec) == codec           # "int8:block=512"
    blob = codec.encode(gradient)
    array, consumed = codec.decode(blob, gradient.size, gradient.dtype)

Those with `Codec.error_feedback` keep what a blob leaves out in a residual and send it later. One of your own is a
subclass of `Codec`, or of `FixedWidthCodec`, in a package with an entry point: docs/codecs.md.
"""

from .base import MIN_NBYTES, Codec, FixedWidthCodec, real, whole
from .bf16 import bf16
from .fp16 import fp16
from .int8 import int8
from .kernels import ALONE, VALUES, Backend, CodecKernel, Spread
from .onebit import onebit
from .raw import raw
from .registry import builtin, for_values, parse
from .topk import topk
from .twobit import twobit

#: The codecs that come with zmqps, by name.
CODECS = builtin(raw, bf16, fp16, int8, topk, onebit, twobit)

__all__ = [
    "ALONE",
    "CODECS",
    "MIN_NBYTES",
    "VALUES",
    "Backend",
    "Codec",
    "CodecKernel",
    "FixedWidthCodec",
    "Spread",
    "bf16",
    "for_values",
    "fp16",
    "int8",
    "onebit",
    "parse",
    "raw",
    "real",
    "topk",
    "twobit",
    "whole",
]
