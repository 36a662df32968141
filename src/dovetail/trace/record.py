"""A model becomes a Profile: export it as one graph where that works, cut real steps at hooks where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from dovetail.errors import BadInput
from dovetail.trace.graph import Op, Profile
from dovetail.trace.hooks import Hooked
from dovetail.trace.joint import Joint, NotExportable
from dovetail.trace.step import Loss, Step, parameters, unmarked
from dovetail.units import format_seconds

DISCARDED = 2  # the first runs pay for caches and allocators


@dataclass(frozen=True, kw_only=True)
class Report:
    """A traced profile and how far to trust it."""

    profile: Profile
    method: str  # "export" or "hooks"
    error: float  # sum of op times / measured step - 1, before any calibration
    spread: float  # slowest whole step seen / the undisturbed step: how busy the machine was
    notes: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """What a person wants to know, one fact a line."""
        profile = self.profile
        return (
            f"{len(profile.ops)} ops and {len(profile.params)} parameters by {self.method}",
            f"op times sum to {format_seconds(profile.compute_time)}, a measured step takes "
            f"{format_seconds(profile.measured_time or 0.0)}: raw error {self.error:+.1%} "
            f"(the slowest step seen took {self.spread:.2f}x that)",
            *(f"note: {note}" for note in self.notes),
        )

    def summary(self) -> dict[str, object]:
        """The same facts for a program."""
        profile = self.profile
        return {
            "trace": profile.name,
            "method": self.method,
            "ops": len(profile.ops),
            "params": len(profile.params),
            "nbytes": profile.nbytes,
            "summed_s": profile.compute_time,
            "measured_s": profile.measured_time,
            "error": self.error,
            "spread": self.spread,
            "notes": self.notes,
        }


def trace(model: nn.Module, example_inputs: Any, loss: Loss | None = None, *, runs: int = 5, name: str = "") -> Profile:
    """Profile one training step; op times are minima over `runs` runs after two that do not count."""
    return record(model, example_inputs, loss, runs=runs, name=name).profile


def record(
    model: nn.Module,
    example_inputs: Any,
    loss: Loss | None = None,
    *,
    runs: int = 5,
    name: str = "",
    export: bool = True,
) -> Report:
    """As `trace`, with the method, the error against the measured step, and notes; `export=False` uses hooks alone."""
    if runs < 1:
        raise BadInput(f"runs is {runs}; it must be 1 or more")
    step = Step.of(model, example_inputs, loss)
    label = name or type(model).__name__
    with unmarked(model):
        step.check()
        notes: tuple[str, ...] = ()
        joint: Joint | None = None
        if export:
            try:
                joint = Joint(step)
            except NotExportable as error:
                notes = (f"{error}; traced with hooks",)
        return _report(step, joint, runs, label, notes)


def calibrated(profile: Profile) -> Profile:
    """The profile with op times scaled so that their sum is the measured step."""
    if not profile.measured_time or not profile.compute_time:
        raise BadInput(f"profile {profile.name!r} has no measured step or no op times; trace it again")
    factor = profile.measured_time / profile.compute_time
    ops = tuple(Op(op.name, op.time * factor, op.inputs, op.reads, op.produces) for op in profile.ops)
    return Profile(ops, profile.params, name=profile.name, measured_time=profile.measured_time)


def _traced(step: Step, tracer: Joint | None, runs: int) -> tuple[tuple[Op, ...], float, float]:
    """Ops of `tracer` (None: of the hooks), the seconds of an undisturbed real step, and the spread of whole steps."""
    hooked = Hooked(step)
    whole = []
    for i in range(DISCARDED + runs):
        keep = i >= DISCARDED
        whole.append(step.timed())
        hooked.run(keep=keep)
        if tracer is not None:
            tracer.replay(keep=keep)
    cut = hooked.ops()
    # On a busy machine no whole step is undisturbed, but each of its segments is in one run or another.
    measured = min(*whole[DISCARDED:], sum(op.time for op in cut))
    return cut if tracer is None else tracer.ops(), measured, max(whole[DISCARDED:]) / measured


def _report(step: Step, tracer: Joint | None, runs: int, name: str, notes: tuple[str, ...]) -> Report:
    ops, measured, spread = _traced(step, tracer, runs)
    profile = Profile(ops, parameters(step.model), name=name, measured_time=measured)
    made = {op.produces for op in ops}
    idle = [p.name for p in profile.params if p.name not in made]
    if idle:
        notes = (*notes, f"{len(idle)} parameters get no gradient in this step: {', '.join(idle[:3])}")
    return Report(
        profile=profile,
        method="export" if tracer else "hooks",
        error=profile.compute_time / measured - 1,
        spread=spread,
        notes=notes,
    )
