"""A pass of your own in one file: big gradients first.

Run: python examples/my_pass.py
"""

from __future__ import annotations

from dovetail.network.model import Cluster, Link
from dovetail.plan.base import prioritize
from dovetail.plan.policies import make_plan, register_policy
from dovetail.plan.schedule import Plan
from dovetail.plan.slices import slices
from dovetail.trace.graph import Op, Param, Profile


def largest_first(plan: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Give the largest parameter the most urgent number."""
    by_size = sorted(plan.params, key=lambda p: -p.nbytes)
    return prioritize(plan, {p.name: rank for rank, p in enumerate(by_size)})


register_policy("largest-first", [slices, largest_first], about="big gradients first, in slices")

if __name__ == "__main__":
    net = Profile(
        ops=(
            Op("conv", 0.002, reads=("conv.weight",)),
            Op("fc", 0.001, inputs=("conv",), reads=("fc.weight",)),
            Op("fc grad", 0.002, inputs=("fc",), produces="fc.weight"),
            Op("conv grad", 0.004, inputs=("fc grad",), produces="conv.weight"),
        ),
        params=(Param("conv.weight", 40_000), Param("fc.weight", 1_200_000)),
    )
    cluster = Cluster.uniform(workers=4, link=Link(startup=50e-6, bandwidth=62.5e6))
    plan = make_plan(net, cluster, "largest-first")
    print(f"{len(plan.transfers)} transfers, most urgent first: {', '.join(plan.order)}")
