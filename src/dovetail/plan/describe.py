"""A plan and the list of policies as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.plan.base import name_of
from dovetail.plan.policies import AUTO, policies
from dovetail.plan.schedule import Plan, Transfer
from dovetail.units import format_bytes

SHOWN = 10


def summary(plan: Plan) -> str:
    """What the plan is, and the first transfers in order of urgency."""
    waits = "the next forward pass waits for everything" if plan.barrier else "each op waits for its own parameters"
    facts = [
        ("policy", plan.policy),
        ("transfers", f"{len(plan.transfers)} for {format_bytes(plan.nbytes)} in {len(plan.params)} parameters"),
        ("aggregation", f"{plan.aggregation}, update at the {plan.update}, chunks of {format_bytes(plan.chunk_bytes)}"),
        ("waiting", waits),
    ]
    if plan.edges:
        facts.append(("ordering edges", str(len(plan.edges))))
    if plan.keep < 1:
        facts.append(("sparsified", f"{plan.keep:.3%} of gradient values travel; this changes results"))
    ranked = sorted(plan.transfers, key=lambda t: t.priority)
    rows = [("priority", "kind", "window", "size", "depth", "parameters"), *map(_row, ranked[:SHOWN])]
    more = [f"... and {len(ranked) - SHOWN} more"] if len(ranked) > SHOWN else []
    return "\n".join([*_table(facts), "", *_table(rows), *more])


def policy_list() -> str:
    """Every policy, its passes in order, and what it does."""
    rows = [(name, " > ".join(map(name_of, p.passes)), p.about) for name, p in policies().items()]
    rows.append((AUTO, "", "simulates the useful combinations and takes the best"))
    return "\n".join(_table([("policy", "passes", "what it does"), *rows]))


def _row(transfer: Transfer) -> tuple[str, ...]:
    names = transfer.params
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    size = format_bytes(transfer.nbytes)
    return (str(transfer.priority), transfer.kind, transfer.window, size, str(transfer.depth), shown)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
