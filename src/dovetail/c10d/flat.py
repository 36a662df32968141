"""Flat buffers: the parts of a load side by side, with a flag a parameter that says whether anybody had a gradient."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from dovetail.c10d.dtypes import DTYPES
from dovetail.c10d.sequence import Load

TYPES = {name: dtype for dtype, name in DTYPES.items()}


class Flat:
    """One load's buffer, padded so that every rank owns an equal shard of it."""

    def __init__(self, load: Load, *, world: int, device: torch.device) -> None:
        self._load, self._world, self._device = load, world, device
        self._dtype = TYPES[load.dtype]
        width = self._dtype.itemsize
        self._counts = [nbytes // width for _, _, nbytes in load.parts]
        self._flags = sum(self._counts)  # where they begin
        shard = -(-(self._flags + len(load.params)) // world)
        self.whole = torch.zeros(shard * world, dtype=self._dtype, device=device)
        self.shard = self.whole.new_zeros(shard if load.split else 0)  # this rank's share, summed
        # Gloo's reduce-scatter is an all-reduce inside and sends twice as much as an exchange of shards.
        self.exchanged = torch.zeros_like(self.whole) if load.split and device.type == "cpu" else None

    def pack(self, pointers: Mapping[str, int]) -> None:
        """Take this rank's gradients, already divided by the number of ranks; 0 = there is none."""
        start = 0
        for (name, offset, _), count in zip(self._load.parts, self._counts, strict=True):
            piece = self.whole[start : start + count]
            if pointers[name]:
                torch.mul(self._at(pointers[name] + offset, count), 1.0 / self._world, out=piece)
            else:
                piece.zero_()
            start += count
        flags = [float(pointers[name] != 0) for name in self._load.params]
        self.whole[self._flags : self._flags + len(flags)] = torch.tensor(flags, dtype=self._dtype, device=self._device)
        self.whole[self._flags + len(flags) :].zero_()

    def sum_up(self) -> None:
        """After an exchange, when every rank's copy of our shard is here."""
        if self.exchanged is not None:
            torch.sum(self.exchanged.view(self._world, -1), 0, out=self.shard)

    def unpack(self, pointers: Mapping[str, int]) -> dict[str, bool]:
        """Put the means where they belong (0 = nowhere); says of each parameter whether any rank had a gradient."""
        start = 0
        for (name, offset, _), count in zip(self._load.parts, self._counts, strict=True):
            if pointers[name]:
                self._at(pointers[name] + offset, count).copy_(self.whole[start : start + count])
            start += count
        params = self._load.params
        flags = self.whole[self._flags : self._flags + len(params)].tolist()
        return {name: flag > 0 for name, flag in zip(params, flags, strict=True)}

    def _at(self, pointer: int, count: int) -> torch.Tensor:
        return memory(pointer, count, self._dtype, self._device)


def memory(pointer: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor on memory that somebody else keeps alive."""
    nbytes = count * dtype.itemsize
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_char * nbytes).from_address(pointer), dtype=dtype)
    return torch.as_tensor(_OnDevice(pointer, nbytes), device=device).view(dtype)


class _OnDevice:
    """Bytes on a GPU, in the form torch can look at without copying."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3,
        }  # fmt: skip
