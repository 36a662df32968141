"""The order in which a step reads its parameters and makes their gradients, found while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dovetail.trace.graph import Op, Param, Profile
from dovetail.training.slots import Slot


class FirstUse:
    """Instants of first reads in the last forward pass, and of the gradients after it."""

    def __init__(self, slots: Sequence[Slot], clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = slots
        self._clock = clock
        self._start = clock()
        self._in_forward = False
        self._reads: dict[int, float] = {}
        self._gradients: dict[int, float] = {}

    def forward_begins(self) -> None:
        """A call of the whole model: what it reads first is the order that counts, until a gradient appears."""
        self._in_forward = True
        if not self._gradients:
            self._reads.clear()
            self._start = self._clock()

    def read(self, slot: Slot) -> bool:
        """Note a read; True if it belongs to a call of the model."""
        if not self._gradients:
            self._reads.setdefault(slot.index, self._clock())
        return self._in_forward

    def forward_ends(self) -> None:
        """Reads from here on do not belong to a call of the model."""
        self._in_forward = False

    def made(self, slot: Slot) -> None:
        """Note a gradient of the first backward pass."""
        self._gradients.setdefault(slot.index, self._clock())

    def profile(self) -> Profile:
        """What was seen as a chain of ops: a read each, then a gradient each."""
        ops: list[Op] = []
        before = self._start
        for prefix, instants in (("read", self._reads), ("gradient", self._gradients)):
            for index, instant in instants.items():
                name = self._slots[index].name
                inputs = (ops[-1].name,) if ops else ()
                spent = max(0.0, instant - before)
                before = instant
                if prefix == "read":
                    ops.append(Op(f"read {name}", spent, inputs, reads=(name,)))
                else:
                    ops.append(Op(f"gradient {name}", spent, inputs, produces=name))
        return Profile(ops=tuple(ops), params=params_of(self._slots), name="recorded")


def params_of(slots: Sequence[Slot]) -> tuple[Param, ...]:
    """The slots as the planner sees them."""
    return tuple(
        Param(slot.name, slot.param.numel() * slot.param.element_size(), slot.param.element_size()) for slot in slots
    )


def registration(slots: Sequence[Slot]) -> Profile:
    """The guess before the first step: parameters are read as registered, and gradients come the other way."""
    names = [slot.name for slot in slots]
    ops = [Op(f"read {name}", 1e-3, reads=(name,)) for name in names]
    ops += [Op(f"gradient {name}", 2e-3, produces=name) for name in reversed(names)]
    chained = [Op(op.name, op.time, (ops[i - 1].name,) if i else (), op.reads, op.produces) for i, op in enumerate(ops)]
    return Profile(ops=tuple(chained), params=params_of(slots), name="registered")
