"""Decisions: a Profile and a Cluster become a Plan, by passes that are pure functions."""

from dovetail.calls import make_callable

make_callable(__name__, "dovetail.plan.policies:make_plan")
