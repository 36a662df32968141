"""What a bench compares: each system says how it takes over a model, what it sends, and how many machines it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dovetail.bench.bounds import HUB, RING, SHUFFLE
from dovetail.errors import BadInput
from dovetail.timeline import RECEIVE, SEND, Span

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

ALONE = "alone"  # variant of every system: no communication, for the floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a system gets: hubs to use, and a rate (bytes/s) it must keep itself where no link does."""

    variant: str
    hubs: tuple[str, ...] = ()
    rate: float = 0.0
    trace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`attach(model, optimizer, means)` gives the model to call; the best of the `variants` is measured."""

    name: str
    pattern: str  # of bounds.py
    attach: Callable[[nn.Module, Optimizer, Means], nn.Module]
    variants: tuple[str, ...]
    hubs: int = 0  # machines beside the workers
    limits_itself: bool = False  # can keep to a rate where the network cannot be shaped
    spans: Callable[[nn.Module], Sequence[Span]] | None = None  # what it saw itself, if attached with `trace`


def _attach_ddp(model: nn.Module, optimizer: Optimizer, means: Means) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, bucket_cap_mb=float(means.variant), gradient_as_bucket_view=True)


def _attach_dovetail(model: nn.Module, optimizer: Optimizer, means: Means) -> nn.Module:
    from dovetail.training.distribute import distribute

    distribute(model, optimizer, policy=means.variant, hubs=means.hubs, rate=means.rate, trace=means.trace)
    return model


def _dovetail_spans(model: nn.Module) -> Sequence[Span]:
    from dovetail.training.distribute import timeline

    line = timeline(model)
    # The recorder counts from its own zero and notes where that lies on the monotonic clock.
    zero = float(line.notes[0].removeprefix("zero "))
    return coalesced([_moved(span, zero) for span in line.spans])


def _moved(span: Span, seconds: float) -> Span:
    return replace(span, start=span.start + seconds, end=span.end + seconds)


def coalesced(spans: Sequence[Span], *, gap: float = 1e-3) -> list[Span]:
    """Chunks of one tensor that travel close after each other, as one span: a picture needs no more."""
    found: list[Span] = []
    last: dict[tuple[object, ...], int] = {}
    for span in sorted(spans, key=lambda s: s.start):
        key = (span.node, span.lane, span.name, span.iteration, span.peer)
        at = last.get(key)
        if span.lane in (SEND, RECEIVE) and at is not None and span.start - found[at].end <= gap:
            before = found[at]
            found[at] = replace(before, end=max(before.end, span.end), nbytes=before.nbytes + span.nbytes)
        else:
            last[key] = len(found)
            found.append(span)
    return found


def _dovetail(name: str, pattern: str, hubs: int) -> System:
    return System(
        name=name,
        pattern=pattern,
        attach=_attach_dovetail,
        variants=("p3",),
        hubs=hubs,
        limits_itself=True,
        spans=_dovetail_spans,
    )


SYSTEMS = {
    system.name: system
    for system in (
        System(name="ddp", pattern=RING, attach=_attach_ddp, variants=("25", "5", "1")),  # bucket sizes in MB
        _dovetail("sharded", SHUFFLE, hubs=0),
        _dovetail("hub", HUB, hubs=1),
    )
}


def chosen(names: Sequence[str]) -> tuple[System, ...]:
    """The systems with these names, in this order."""
    for name in names:
        if name not in SYSTEMS:
            raise BadInput(f"system {name!r} is not known; choose among {', '.join(SYSTEMS)}")
    if len(set(names)) < len(names) or not names:
        raise BadInput(f"systems {','.join(names)!r}: name each once, and at least one")
    return tuple(SYSTEMS[name] for name in names)
