"""Codecs: gradients and parameters in fewer bytes.

A codec is named with its numbers, travels as a short text, and turns an array into a blob of bytes::

    from zmqps import codecs

    codec = codecs.int8(block=512)
    codecs.parse(codec.spec) == codec           # "int8:block=512"
    blob = codec.encode(gradient)
    array, consumed = codec.decode(blob, gradient.size, gradient.dtype)

Those with `Codec.error_feedback` keep what a blob leaves out in a residual and send it later.
"""

from .base import MIN_NBYTES, Codec
from .bf16 import bf16
from .fp16 import fp16
from .int8 import int8
from .kernels import ALONE, Backend, Spread
from .onebit import onebit
from .raw import raw
from .registry import CODECS, parse
from .topk import topk
from .twobit import twobit

__all__ = [
    "ALONE",
    "CODECS",
    "MIN_NBYTES",
    "Backend",
    "Codec",
    "Spread",
    "bf16",
    "fp16",
    "int8",
    "onebit",
    "parse",
    "raw",
    "topk",
    "twobit",
]
