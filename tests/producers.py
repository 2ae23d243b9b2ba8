"""Doubles of other libraries' arrays on a GPU: computed no earlier than somebody waits for them properly."""

from __future__ import annotations

from typing import Any

import numpy as np

CUDA, CUDA_MANAGED, METAL = 2, 13, 8


class Tensor:
    """An array with DLPack, as PyTorch's: its values are there once it was asked for with a stream.

    Parameters
    ----------
    array
        What it will hold.
    index
        Of the device.
    kind
        Of the device, in DLPack's numbers.
    """

    def __init__(self, array: Any, index: int = 0, kind: int = CUDA) -> None:
        self._values = np.asarray(array)
        self.memory = np.zeros_like(self._values)
        self._computed = False
        self._device = kind, index
        self.streams: list[Any] = []

    @property
    def shape(self) -> tuple[int, ...]:
        return self.memory.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.streams.append(stream)
        if stream is not None and not self._computed:
            self.memory[...], self._computed = self._values, True
        return self.memory.__dlpack__(max_version=max_version)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a tensor on a GPU to numpy: copy it to host memory first")


class InterfaceArray:
    """An array with nothing but the CUDA array interface, as numba's."""

    def __init__(self, array: Any, *, read_only: bool = False) -> None:
        self.memory = np.asarray(array)
        interface = self.memory.__array_interface__
        data = interface["data"][0], read_only
        self.__cuda_array_interface__ = {**interface, "data": data, "version": 3, "stream": 1}
