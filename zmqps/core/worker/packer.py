"""What gradients become on their way to one shard: encoded, with what codecs leave out kept for later."""

from __future__ import annotations

import numpy as np

from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, Coding, choose
from zmqps.core.worker.plan import Cargo
from zmqps.core.worker.transfer import PushTransfer, Request, Source


class Packer:
    """Encodes the gradients for one shard."""

    def __init__(self, coding: Coding) -> None:
        self.left_out: dict[int, Array] = {}  # by slice: what lossy codecs have not sent yet
        self.saved_nbytes = 0  # of what was to be sent, by codecs
        self._coding = coding

    def pack(self, request: Request, source: Source) -> tuple[str, list[Array]]:
        """Return the gradients of a request and the codec they are in.

        Encoding changes the residuals, so it is done once and kept for a resend.
        """
        if request.encoded is not None:
            return request.encoded
        if source.encoded is not None:
            found = [source.encoded[cargo] for cargo in request.cargoes]
            return found[0][0], [blob for _, blob in found]
        codec = None if request.codec == RAW else choose(request.codec, request.nbytes)
        if codec is not None and codec.error_feedback:
            residuals = [self._residuals(cargo) for cargo in request.cargoes]
            return self._keep(request, codec, self._encode(request, codec, source, residuals))
        if codec is None:
            return RAW, source.payload(request.cargoes)
        return self._keep(request, codec, self._encode(request, codec, source))

    def _encode(
        self, request: Request, codec: Codec, source: Source, residuals: list[list[Array]] | None = None
    ) -> list[Array]:
        return self._coding.compress(codec, map(source.pieces, request.cargoes), residuals, request.seq)

    def _keep(self, request: Request, codec: Codec, blobs: list[Array]) -> tuple[str, list[Array]]:
        self.saved_nbytes += request.raw_nbytes - sum([blob.nbytes for blob in blobs])
        request.encoded = codec.spec, blobs
        if isinstance(request.transfer, PushTransfer) and request.transfer.blobs is not None:
            request.transfer.blobs |= {c: (codec.spec, blob) for c, blob in zip(request.cargoes, blobs, strict=True)}
        return request.encoded

    def _residuals(self, cargo: Cargo) -> list[Array]:
        slice_ = cargo.slice
        if slice_.index not in self.left_out:
            self.left_out[slice_.index] = np.zeros(slice_.size, cargo.dtype)
        return [self.left_out[slice_.index][start:stop] for start, stop in cargo.bounds]
