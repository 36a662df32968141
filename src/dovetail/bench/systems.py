"""What a bench compares: each system says how it takes over a model, what it sends, and how many machines it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dovetail.bench.bounds import RACK_HUBS, RING, SHUFFLE, TWO_LEVEL, Groups
from dovetail.errors import BadInput
from dovetail.plan.patterns import PATTERNS
from dovetail.plan.policies import AUTO, policies
from dovetail.timeline import RECEIVE, SEND, Span

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

ALONE = "alone"  # variant of every system: no communication, for the floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a system gets: hubs to use, racks to know, and a rate (bytes/s) it must keep itself where no link does."""

    variant: str
    hubs: tuple[str, ...] = ()
    groups: Groups | None = None
    facing: str = ""  # the host whose route tells which interface to use
    rate: float = 0.0
    trace: bool = False


SHARDED = "sharded"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`attach(model, optimizer, means)` gives the model to call; the best of the `variants` is measured, or `each`."""

    name: str
    pattern: str  # of plan/patterns.py: what travels at least, also where `auto` may choose another
    attach: Callable[[nn.Module, Optimizer, Means], nn.Module]
    variants: tuple[str, ...]
    backend: str = "gloo"  # of the process group, which is all that a script has
    each: bool = False  # every variant is a policy with a row of its own
    own: bool = False  # the variants are what the name says, whatever policies are asked for
    limits_itself: bool = False  # can keep to a rate where the network cannot be shaped
    spans: Callable[[nn.Module], Sequence[Span]] | None = None  # what it saw itself, if attached with `trace`

    @property
    def free(self) -> bool:
        """Whether the pattern is the system's own choice."""
        return self.name == AUTO

    @property
    def asked(self) -> str | None:
        """The aggregation that is asked for; None = what distribute() takes by itself."""
        return AUTO if self.free else None if self.name == SHARDED else self.pattern

    @property
    def update(self) -> str | None:
        """Where the optimizer must run; None = the system's own choice."""
        return "worker" if self.pattern == RACK_HUBS else None


def _attach_ddp(model: nn.Module, optimizer: Optimizer, means: Means) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, bucket_cap_mb=float(means.variant), gradient_as_bucket_view=True)


def _attach_ddp_scheduled(model: nn.Module, optimizer: Optimizer, means: Means) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(model)
    _attach_dovetail("ddp-scheduled", wrapped, optimizer, means)
    return wrapped


def _attach_c10d(model: nn.Module, optimizer: Optimizer, means: Means) -> nn.Module:
    from dovetail.training.distribute import distribute

    distribute(model, optimizer, policy=means.variant, hubs=(), engine="c10d", trace=means.trace)
    return model


def _attach_dovetail(system: str, model: nn.Module, optimizer: Optimizer, means: Means) -> nn.Module:
    from dovetail.engine.session import Options
    from dovetail.training.distribute import distribute

    chosen = SYSTEMS[system]
    distribute(
        model,
        optimizer,
        policy=means.variant,
        hubs=means.hubs,
        aggregation=chosen.asked,
        update=chosen.update or "auto",
        rate=means.rate,
        trace=means.trace,
        # Two-level is not told the racks: finding them is its part of the bench.
        options=Options(groups=None if chosen.pattern == TWO_LEVEL else means.groups, facing=means.facing),
    )
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


def _dovetail(name: str, pattern: str, *variants: str) -> System:
    return System(
        name=name,
        pattern=pattern,
        attach=partial(_attach_dovetail, name),
        variants=variants or ("p3",),
        each=True,
        limits_itself=True,
        spans=_dovetail_spans,
    )


def _c10d(policy: str) -> System:
    """Our schedule on the process group that the script has."""
    return System(
        name=f"c10d-{policy}",
        pattern=SHUFFLE,
        attach=_attach_c10d,
        variants=(policy,),
        each=True,
        own=True,
        spans=_dovetail_spans,
    )


BUCKETS = ("25", "5", "1")  # MB, DDP's setting
SYSTEMS = {
    system.name: system
    for system in (
        System(name="ddp", pattern=RING, attach=_attach_ddp, variants=BUCKETS),
        System(name="ddp-dovetail", pattern=RING, attach=_attach_ddp, variants=BUCKETS, backend="dovetail"),
        replace(_dovetail("ddp-scheduled", SHUFFLE), attach=_attach_ddp_scheduled),
        *(_c10d(policy) for policy in ("dear", AUTO)),
        _dovetail(SHARDED, RING),
        *(_dovetail(pattern, pattern) for pattern in PATTERNS),
        replace(_dovetail(AUTO, SHUFFLE, AUTO), own=True),
    )
}


def chosen(names: Sequence[str], run: Sequence[str] = ("p3",)) -> tuple[System, ...]:
    """The systems with these names, in this order; those of ours `run` each of these policies."""
    for name in names:
        if name not in SYSTEMS:
            raise BadInput(f"system {name!r} is not known; choose among {', '.join(SYSTEMS)}")
    if len(set(names)) < len(names) or not names:
        raise BadInput(f"systems {','.join(names)!r}: name each once, and at least one")
    known = (*policies(), AUTO)
    for name in run:
        if name not in known:
            raise BadInput(f"policy {name!r} is not known; choose among {', '.join(known)}")
    if len(set(run)) < len(run) or not run:
        raise BadInput(f"policies {','.join(run)!r}: name each once, and at least one")
    systems = (SYSTEMS[name] for name in names)
    return tuple(replace(s, variants=tuple(run)) if s.each and not s.own else s for s in systems)
