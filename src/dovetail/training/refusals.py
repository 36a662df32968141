"""What cannot be done with gradients that have left or have not been sent, each refused with a line that says so."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.errors import Misuse, TimedOut
from dovetail.training.slots import Slot


def check_landed(slot: Slot) -> None:
    """A gradient may be made again only when the last one is done with."""
    if slot.flying or slot.due:
        raise Misuse(
            f"the gradient of {slot.name!r} was made again while the last one was on its way; put all backward "
            "passes of a step but the last into `with dovetail.no_sync(model)`, call backward() in the thread "
            "that called distribute(), and checkpoint with use_reentrant=False"
        )


def check_untouched(slot: Slot) -> None:
    """Nobody may change a gradient inside backward() after it has left."""
    grad = slot.param.grad
    if grad is not slot.buffer or (grad is not None and grad._version != slot.stamp):
        raise Misuse(
            f"the gradient of {slot.name!r} was changed inside backward() after it had left; change it in the "
            "parameter's own register_post_accumulate_grad_hook, or after backward()"
        )


def check_shared(slots: Iterable[Slot]) -> None:
    """A step needs gradients that all ranks know of."""
    local = next((slot for slot in slots if slot.local and slot.param.grad is not None), None)
    if local is not None:
        raise Misuse(
            f"optimizer.step() on gradients made under no_sync only (first: {local.name!r}); "
            "run the last backward() before step() outside dovetail.no_sync(model)"
        )


def second_round() -> Misuse:
    """The error for one that an aggregator would take for the next step's."""
    return Misuse(
        "a second backward pass came before optimizer.step(), but the update runs at the aggregator and "
        "cannot be withheld; use dovetail.no_sync(model) or update='worker'"
    )


def too_late(what: str, seconds: float) -> TimedOut:
    """The error for what did not come in the time that the process group's calls have."""
    return TimedOut(
        f"{what} was not there after {seconds:g} s, the process group's time limit; see what keeps a rank from "
        "training on, or give init_process_group() a longer timeout"
    )
