"""Gradients on a GPU are encoded there, so that the smaller form crosses the bus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from zmqps.codecs import Codec
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import CODING, RAW, Coding, choose, named
from zmqps.core.worker.transfer import Cargo
from zmqps.errors import DeviceError
from zmqps.gpu.handover import Handover, Port, Remote


class Encoder:
    """Encodes the gradients of one job, and keeps what codecs leave out where it encodes.

    Parameters
    ----------
    job
        Whose gradients.
    handover
        The way to arrays on GPUs.
    coding
        The door to the codecs.
    """

    def __init__(self, job: JobSpec, handover: Handover, coding: Coding = CODING) -> None:
        self._job = job
        self._coding = coding
        self._handover = handover
        self._left_out: dict[tuple[str, int, int], Any] = {}  # by device, shard and slice
        self._seeds = count(1)

    def port_for(self, codec: str, arrays: Mapping[int, Array | Remote]) -> Port | None:
        """Return where gradients are encoded; None: on this host, which is always right.

        That is so for gradients on several GPUs, and for a codec whose result would depend on the place.
        """
        found = named(codec)
        ports = {array.port.device.spec: array.port for array in arrays.values() if isinstance(array, Remote)}
        if found is None or not found.portable or len(ports) != 1:
            return None
        return next(iter(ports.values()))

    def encode(
        self,
        port: Port,
        codec: str,
        arrays: Mapping[int, Array | Remote],
        cargoes: Sequence[Sequence[Cargo]],
        *,
        atomic: bool,
    ) -> tuple[list[str], dict[Cargo, tuple[str, Array]]]:
        """Return the parameters that are not finite, or what to send of each cargo: a codec and a blob on this host.

        Parameters
        ----------
        port
            Where.
        codec
            How.
        arrays
            Gradients by parameter number; those that are not on the device are copied there.
        cargoes
            What of them goes into one message, for each shard.
        atomic
            All cargoes of a shard go in one message, so in one codec.
        """
        try:
            with self._handover.entered(port):
                flat = self._uploaded(port, arrays)
                if bad := self._nonfinite(port, flat):
                    return bad, {}
                blobs: dict[Cargo, tuple[str, Any]] = {}
                for shard in cargoes:
                    together = sum(cargo.nbytes for cargo in shard)
                    for cargo in shard:
                        chosen = choose(codec, together if atomic else cargo.nbytes)
                        blobs[cargo] = RAW if chosen is None else chosen.spec, self._blob(port, chosen, flat, cargo)
        except MemoryError as error:
            raise DeviceError(
                f"{port.device.name} lacks the memory to encode gradients ({error}); free some, or push them raw"
            ) from error
        fetched = self._handover.fetch([Remote(port, blob) for _, blob in blobs.values()])
        names = [name for name, _ in blobs.values()]
        return [], dict(zip(blobs, zip(names, fetched, strict=True), strict=True))

    def _uploaded(self, port: Port, arrays: Mapping[int, Array | Remote]) -> dict[int, Any]:
        """Return flat arrays on the device, in the dtype they are sent in."""
        device, flat, uploads = port.device, {}, False
        for number, array in arrays.items():
            if isinstance(array, Remote):
                flat[number] = device.xp.ascontiguousarray(array.array).reshape(-1)
            else:
                flat[number] = device.empty(array.size, array.dtype)
                device.copy_in(np.ascontiguousarray(array).reshape(-1), flat[number], port.outbound)
                uploads = True
        if uploads:  # the arrays may go when this returns
            port.outbound.record().wait()
        with np.errstate(over="ignore"):
            dtypes = {number: self._job.parameters[number].storage_dtype for number in flat}
            return {number: array.astype(dtypes[number], copy=False) for number, array in flat.items()}

    def _nonfinite(self, port: Port, flat: Mapping[int, Any]) -> list[str]:
        """Return the names of gradients with NaN or infinity in them, where the job refuses those."""
        if self._job.nonfinite != "reject":
            return []
        xp = port.device.xp
        finite = xp.empty(len(flat), np.bool_)
        for i, array in enumerate(flat.values()):
            xp.isfinite(array).all(out=finite[i, ...])
        (flags,) = self._handover.fetch([Remote(port, finite)])  # all in one copy
        return [self._job.parameters[number].name for number, flag in zip(flat, flags, strict=True) if not flag]

    def _blob(self, port: Port, codec: Codec | None, flat: Mapping[int, Any], cargo: Cargo) -> Any:
        xp = port.device.xp
        pieces = [flat[parameter][start:stop] for parameter, start, stop in cargo.extents]
        if codec is None:
            return (pieces[0] if len(pieces) == 1 else xp.concatenate(pieces)).view(np.uint8)
        residuals = [self._residuals(port, cargo)] if codec.error_feedback else None
        (blob,) = self._coding.compress(codec, [pieces], residuals, next(self._seeds), xp)
        return blob

    def _residuals(self, port: Port, cargo: Cargo) -> list[Any]:
        key = port.device.spec, cargo.slice.shard, cargo.slice.index
        if key not in self._left_out:
            self._left_out[key] = port.device.xp.zeros(cargo.slice.size, cargo.dtype)
        return [self._left_out[key][start:stop] for start, stop in cargo.bounds]
