"""The plan of a session that is only opened: what it moves is added while it runs."""

from __future__ import annotations

from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.trace.graph import Param

NAME, NBYTES = "opening", 4


def opening_plan(policy: str, aggregation: str, *, chunk_bytes: int) -> Plan:
    """One small parameter that nobody submits, over the pattern and in the chunks that what follows will use."""
    return Plan(
        policy=policy,
        params=(Param(NAME, NBYTES),),
        transfers=(Transfer(REDUCE, ((NAME, 0, NBYTES),)),),
        aggregation=aggregation,
        chunk_bytes=chunk_bytes,
    )
