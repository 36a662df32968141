"""The read guard: whatever torch function touches a tensor with work outstanding waits for that tensor first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from dovetail.training.slots import Slot

_PROPERTIES = (
    "shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad_fn", "ndim", "names", "itemsize", "nbytes",
    "is_cpu", "is_cuda", "is_sparse", "is_sparse_csr", "is_quantized", "is_meta", "is_nested", "is_mkldnn", "is_mps",
    "is_xpu", "is_ipu", "is_vulkan", "is_maia", "is_mtia", "is_xla", "retains_grad", "output_nr", "_version", "_base",
    "_backward_hooks", "_post_accumulate_grad_hooks", "name",
)  # fmt: skip
_METHODS = (
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous", "element_size",
    "is_floating_point", "is_complex", "is_signed", "get_device", "requires_grad_", "retain_grad", "register_hook",
    "register_post_accumulate_grad_hook", "__len__", "__hash__", "is_pinned", "is_shared", "is_same_size", "_is_view",
)  # fmt: skip


def _looks() -> frozenset[object]:
    """Functions that look at a tensor's shape or bookkeeping, never at its values."""
    found: set[object] = {torch.is_floating_point, torch.is_complex, torch.numel, torch.is_same_size}
    for name in _PROPERTIES:
        attribute = getattr(torch.Tensor, name, None)
        if attribute is not None and hasattr(attribute, "__get__"):
            found |= {attribute.__get__, getattr(attribute, "__set__", None)}
    found |= {getattr(torch.Tensor, name, None) for name in _METHODS}
    return frozenset(found - {None})


_LOOKS = _looks()
_grad_attribute: Any = torch.Tensor.grad
_GRAD = _grad_attribute.__get__
_NEW_GRAD = (_grad_attribute.__set__, _grad_attribute.__delete__)
# Ways to memory that torch loses sight of: writes through them do not count as changes of the parameter.
_RAW = frozenset(
    {torch.Tensor.data.__get__, torch.Tensor.data_ptr, torch.Tensor.numpy, torch.Tensor.untyped_storage}  # type: ignore[attr-defined]
)
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward)
_ZERO_GRAD = torch.nn.Module.zero_grad.__code__


class Watcher(Protocol):
    """What the guard tells: the job that owns the tensors."""

    def settle(self, slots: Iterable[Slot]) -> None: ...
    def settle_all(self) -> None: ...
    def read_grad(self, slot: Slot) -> None: ...
    def drop_grad(self, slot: Slot, *, set_to_none: bool) -> None: ...
    def first_read(self, slot: Slot) -> None: ...
    def touched(self, slot: Slot) -> None: ...
    def backward(self) -> AbstractContextManager[None]: ...


class Guard(TorchFunctionMode):
    """A mode below the user's own modes; costs one Python call a torch function when nothing is outstanding."""

    def __init__(self, job: Watcher, slots: Iterable[Slot]) -> None:
        super().__init__()
        self._job = job
        self._slot_of: Mapping[int, Slot] = {id(slot.param): slot for slot in slots}
        self.outstanding: dict[int, list[Slot]] = {}  # address of a storage -> slots with work outstanding there
        self.recording = True  # the order of first use is still looked for

    def watch(self, tensor: torch.Tensor, slot: Slot) -> None:
        """Reads of this memory, under whatever name, wait for the slot from now on."""
        address = _address(tensor)
        if address:  # an empty tensor has no memory to read
            self.outstanding.setdefault(address, []).append(slot)

    def forget(self, tensor: torch.Tensor, slot: Slot) -> None:
        """Undo one `watch`."""
        address = _address(tensor)
        slots = self.outstanding.get(address, [])
        if slot in slots:
            slots.remove(slot)
        if not slots:
            self.outstanding.pop(address, None)

    def install(self) -> None:
        """Go below every mode that some `with` block will pop, but above the default device, which insists on last."""
        stack = _unstack()
        devices = [mode for mode in stack if isinstance(mode, DeviceContext)]
        _restack([*devices, self, *(mode for mode in stack if mode not in devices)])

    def remove(self) -> None:
        """Leave the stack of modes wherever in it the guard is."""
        _restack([mode for mode in _unstack() if mode is not self])

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _BACKWARD:
            return self._backward(func, args, kwargs or {})
        if self.outstanding or self.recording or func in _RAW:
            self._look(func, args, kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)

    def _backward(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with self._job.backward():
            depth = torch._C._len_torch_function_stack()
            try:
                func(*args, **kwargs)
            finally:
                for _ in range(torch._C._len_torch_function_stack() - depth):
                    torch._C._pop_torch_function_stack()

    def resume(self) -> None:
        """Guard inside a backward pass, too: the user's next hook may read the gradient that has just left."""
        count = torch._C._len_torch_function_stack()
        if all(torch._C._get_function_stack_at(i) is not self for i in range(count)):
            torch._C._push_on_torch_function_stack(self)

    def _look(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        if func in _LOOKS:
            return
        if func == _GRAD:
            slot = self._slot_of.get(id(args[0]))
            if slot is not None and (slot.flying or slot.due):
                caller = sys._getframe(2)
                if caller.f_code is _ZERO_GRAD:
                    self._job.drop_grad(slot, set_to_none=caller.f_locals["set_to_none"])
                else:
                    self._job.read_grad(slot)
            return
        if func in _NEW_GRAD:
            slot = self._slot_of.get(id(args[0]))
            if slot is not None:
                slot.dropped = True
            return
        found: list[Slot] = []
        self._find(args, found)
        if kwargs:
            self._find(kwargs.values(), found)
        if found:
            self._job.settle(found)
        if func in _RAW:
            slot = self._slot_of.get(id(args[0]))
            if slot is not None:
                self._job.touched(slot)

    def _find(self, values: Iterable[Any], found: list[Slot]) -> None:
        for value in values:
            slot = self._slot_of.get(id(value))
            if slot is not None:
                if self.recording or not slot.seen:
                    self._job.first_read(slot)
                if slot.due:
                    found.append(slot)
            if isinstance(value, torch.Tensor):
                if self.outstanding:
                    self._find_memory(value, found)
            elif isinstance(value, (list, tuple)):
                self._find(value, found)
            elif isinstance(value, dict):
                self._find(value.values(), found)

    def _find_memory(self, tensor: torch.Tensor, found: list[Slot]) -> None:
        try:
            found += self.outstanding.get(_address(tensor), ())
        except (RuntimeError, NotImplementedError):
            # A wrapper without memory of its own (functorch, sparse) may hide any parameter.
            self._job.settle_all()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _unstack() -> list[TorchFunctionMode]:
    """Take all modes off the stack; the bottom comes first."""
    count = torch._C._len_torch_function_stack()
    return [torch._C._pop_torch_function_stack() for _ in range(count)][::-1]


def _restack(modes: Iterable[TorchFunctionMode]) -> None:
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
