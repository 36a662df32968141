"""Flat buffers: the parts of a load side by side, with a flag a parameter that says whether anybody had a gradient."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from dovetail.c10d.dtypes import DTYPES
from dovetail.c10d.sequence import Load

_WRITABLE = 0x200  # PyBUF_WRITE
# A ctypes array would do as well, but makes a class for each length, which only the garbage collector takes away.
_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)

TYPES = {name: dtype for dtype, name in DTYPES.items()}


class Flat:
    """One load's buffer, padded so that every rank owns an equal shard of it."""

    def __init__(self, load: Load, *, world: int, device: torch.device) -> None:
        self._load, self._world, self._device = load, world, device
        self._dtype = TYPES[load.dtype]
        width = self._dtype.itemsize
        counts = [nbytes // width for _, _, nbytes in load.parts]
        values = sum(counts)
        shard = -(-(values + len(load.params)) // world)
        self.whole = torch.zeros(shard * world, dtype=self._dtype, device=device)
        self.shard = self.whole.new_zeros(shard if load.split else 0)  # this rank's share, summed
        # What comes around the ring; on GPUs the group has a reduce-scatter worth the name.
        ringed = load.split and device.type == "cpu"
        self.arrivals = self.whole.new_empty(shard * (world - 1)) if ringed else None
        *self._pieces, self._flags, self._padding = torch.split(
            self.whole,
            [*counts, len(load.params), len(self.whole) - values - len(load.params)],
        )
        self._all_here = torch.ones_like(self._flags)

    def pack(self, pointers: Mapping[str, int]) -> None:
        """Take this rank's gradients, already divided by the number of ranks; 0 = there is none."""
        for (name, offset, _), piece in zip(self._load.parts, self._pieces, strict=True):
            if pointers[name]:
                torch.mul(self._at(pointers[name] + offset, piece), 1.0 / self._world, out=piece)
            else:
                piece.zero_()
        here = [float(pointers[name] != 0) for name in self._load.params]
        self._flags.copy_(self._all_here if all(here) else self._flags.new_tensor(here))
        self._padding.zero_()

    def unpack(self, pointers: Mapping[str, int]) -> dict[str, bool]:
        """Put the means where they belong (0 = nowhere); says of each parameter whether any rank had a gradient."""
        for (name, offset, _), piece in zip(self._load.parts, self._pieces, strict=True):
            if pointers[name]:
                self._at(pointers[name] + offset, piece).copy_(piece)
        return {name: flag > 0 for name, flag in zip(self._load.params, self._flags.tolist(), strict=True)}

    def _at(self, pointer: int, like: torch.Tensor) -> torch.Tensor:
        return memory(pointer, like.numel(), self._dtype, self._device)


def memory(pointer: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor on memory that somebody else keeps alive."""
    nbytes = count * dtype.itemsize
    if device.type == "cpu":
        return torch.frombuffer(_view(pointer, nbytes, _WRITABLE), dtype=dtype)
    return torch.as_tensor(_OnDevice(pointer, nbytes), device=device).view(dtype)


class _OnDevice:
    """Bytes on a GPU, in the form torch can look at without copying."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3,
        }  # fmt: skip
