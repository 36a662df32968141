"""The read guard: whatever torch function touches a tensor with work outstanding waits for that tensor first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.autograd.graph import increment_version
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from dovetail.training.compiled import Entry
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
    "__len__", "__hash__", "is_pinned", "is_shared", "is_same_size", "_is_view",
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


_grad_attribute: Any = torch.Tensor.grad
_data_attribute: Any = torch.Tensor.data
_ZERO_GRAD = torch.nn.Module.zero_grad.__code__

_READ, _LOOK, _GRAD, _NEW_GRAD, _RAW, _BACKWARD, _HOOK, _UNSCALE = range(8)
_KINDS: dict[object, int] = {
    **dict.fromkeys(_looks(), _LOOK),
    _grad_attribute.__get__: _GRAD,
    _grad_attribute.__set__: _NEW_GRAD,
    _grad_attribute.__delete__: _NEW_GRAD,
    # Ways to memory that torch loses sight of: writes through them do not count as changes of the parameter.
    _data_attribute.__get__: _RAW,
    torch.Tensor.data_ptr: _RAW,
    torch.Tensor.numpy: _RAW,
    torch.Tensor.untyped_storage: _RAW,
    torch.Tensor.backward: _BACKWARD,
    torch.autograd.backward: _BACKWARD,
    torch.Tensor.register_post_accumulate_grad_hook: _HOOK,
    torch._amp_foreach_non_finite_check_and_unscale_: _UNSCALE,
}


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
        self.outstanding: dict[int, tuple[Slot, ...]] = {}  # address of a storage -> slots with work outstanding there
        self.recording = True  # the order of first use is still looked for
        self._blind = False  # compiled code tells where it begins, and may be traced as if there were no guard

    def watch(self, tensor: torch.Tensor, slot: Slot) -> int:
        """Reads of this memory, under whatever name, wait for the slot from now on; returns what `forget` takes."""
        address = _address(tensor)
        if address > 0:  # an empty tensor has no memory to read
            there = self.outstanding.get(address)
            # Hundreds of new containers a step would set off the garbage collector, which takes longer than all this.
            self.outstanding[address] = slot.alone if there is None else (*there, slot)
        return address

    def forget(self, address: int, slot: Slot) -> None:
        """Undo one `watch`."""
        slots = self.outstanding.get(address)
        if slots is None:
            return
        if len(slots) == 1:
            del self.outstanding[address]
        else:
            place = slots.index(slot)
            self.outstanding[address] = slots[:place] + slots[place + 1 :]

    def install(self) -> None:
        """Go below every mode that some `with` block will pop, but above the default device, which insists on last."""
        stack = _unstack()
        devices = [mode for mode in stack if isinstance(mode, DeviceContext)]
        _restack([*devices, self, *(mode for mode in stack if mode not in devices)])
        if not _installed:
            torch.autograd.Function.apply = classmethod(_apply)  # type: ignore[assignment, method-assign]
            _entries.append(Entry(_compiled_begins))
        _installed.append(self)
        self._blind = _entries[0].works

    def remove(self) -> None:
        """Leave the stack of modes wherever in it the guard is."""
        _restack([mode for mode in _unstack() if mode is not self])
        _installed.remove(self)
        if not _installed:
            torch.autograd.Function.apply = _plain_apply  # type: ignore[method-assign]
            _entries.pop().remove()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_dynamo_compiling() and self._blind:
            return func(*args, **(kwargs or {}))
        kind = _KINDS.get(func, _READ)
        if kind >= _BACKWARD:
            return self._around(kind, func, args, kwargs or {})
        if kind != _LOOK and (self.outstanding or self.recording or kind == _RAW):
            self._look(kind, args, kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)

    def _around(self, kind: int, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kind == _BACKWARD:
            with self._job.backward():
                return func(*args, **kwargs)
        handle = func(*args, **kwargs)
        if kind == _UNSCALE:
            increment_version(args[0])  # GradScaler's way to change gradients, which torch itself does not count
            return handle
        slot = self._slot_of.get(id(args[0]))
        if slot is not None:
            slot.send_last()
        return handle

    def _look(self, kind: int, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        if kind in (_GRAD, _NEW_GRAD):
            self._look_at_grad(kind, self._slot_of.get(id(args[0])))
            return
        found: list[Slot] = []
        self._find(args, found)
        if kwargs:
            self._find(kwargs.values(), found)
        if found:
            self._job.settle(found)
        if kind == _RAW:
            slot = self._slot_of.get(id(args[0]))
            if slot is not None:
                self._job.touched(slot)
            elif torch._C._current_graph_task_id() == -1 and self._is_gradient(args[0]):
                increment_version(args[0])  # a gradient that may be changed now

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        return any(tensor is slot.buffer or tensor is slot.known for slot in self._slot_of.values())

    def _look_at_grad(self, kind: int, slot: Slot | None) -> None:
        if slot is None:
            return
        if kind == _NEW_GRAD:
            slot.dropped = True
        elif slot.flying or slot.due:
            caller = sys._getframe(3)
            if caller.f_code is _ZERO_GRAD:
                self._job.drop_grad(slot, set_to_none=caller.f_locals["set_to_none"])
            else:
                self._job.read_grad(slot)

    def _find(self, values: Iterable[Any], found: list[Slot]) -> None:
        for value in values:
            slot = self._slot_of.get(id(value))
            if slot is not None:
                if self.recording or not slot.seen:
                    self._job.first_read(slot)
                if slot.due:
                    found.append(slot)
            elif isinstance(value, torch.Tensor):
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


# The user's own autograd functions do not show their arguments to modes, and may read them in C++.
_installed: list[Guard] = []
_entries: list[Entry] = []  # one while any guard is installed
_plain_apply: Any = torch.autograd.Function.__dict__["apply"]


def _apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    for guard in _installed:
        if guard.outstanding or guard.recording:
            guard._look(_READ, args, kwargs)
    return _plain_apply.__get__(None, function)(*args, **kwargs)


def _compiled_begins(own: Iterable[torch.Tensor] | None) -> None:
    """Compiled code is entered: what it reads, its own parameters or any, counts as read now."""
    for guard in _installed:
        if guard.outstanding or guard.recording:
            everything = [slot.param for slot in guard._slot_of.values()]
            # Training passes foreign parameters through an autograd function, which `_apply` sees; evaluation does not.
            guard._look(_READ, tuple(own if own is not None and torch.is_grad_enabled() else everything), None)


def _address(tensor: torch.Tensor) -> int:
    """Where its storage begins, without an object for the storage."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def _unstack() -> list[TorchFunctionMode]:
    """Take all modes off the stack; the bottom comes first."""
    count = torch._C._len_torch_function_stack()
    return [torch._C._pop_torch_function_stack() for _ in range(count)][::-1]


def _restack(modes: Iterable[TorchFunctionMode]) -> None:
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
