"""Comparisons as one self-contained page of charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from dovetail.network.model import Cluster
from dovetail.plan.policies import policies as known
from dovetail.plan.schedule import Plan
from dovetail.simulate.compare import Comparison, rescaled, resized, throughput
from dovetail.timeline import Timeline
from dovetail.trace.graph import Profile
from dovetail.units import format_count, format_rate, format_seconds

_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the given bandwidth
_COLOURS = {"compute": "#4c78a8", "update": "#72b7b2", "wait": "#d8d8d8", "send": "#f58518", "receive": "#54a24b"}


def utilization(alpha: float, rho: float) -> float:
    """U = 1 / (1 + rho - alpha * min(rho, 1)), the papers' identity."""
    return 1 / (1 + rho - alpha * min(rho, 1.0))


def page(found: Comparison, profile: Profile, cluster: Cluster, timelines: Mapping[Plan, Timeline]) -> str:
    """HTML that needs nothing but a browser."""
    # A plan that was chosen or saved for this cluster has no policy to plan other clusters with.
    policies = [(plan.policy, plan.aggregation) for plan in timelines if plan.policy in known()]
    figures = [
        _bars(found),
        _contours(found),
        _lines(*_by_workers(profile, cluster, policies)),
        _lines(*_by_bandwidth(profile, cluster, policies)),
        *(_gantt(plan.policy, timeline) for plan, timeline in timelines.items()),
    ]
    title = f"{found.model or 'model'} on {format_count(found.workers, 'worker')} at {format_rate(found.bandwidth)}"
    body = "\n".join(figure.to_html(full_html=False, include_plotlyjs=False) for figure in figures)
    return (
        f"<!doctype html><html><head><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<script>{get_plotlyjs()}</script></head><body style='font-family:sans-serif;max-width:70em;margin:auto'>"
        f"<h1>{escape(title)}</h1>{body}</body></html>"
    )


def _bars(found: Comparison) -> go.Figure:
    names = [p.policy for p in found.predictions]
    times = [p.iteration_time for p in found.predictions]
    figure = go.Figure(go.Bar(x=names, y=times, text=[format_seconds(t) for t in times]))
    return _titled(figure, "Iteration time by policy", "policy", "seconds")


def _contours(found: Comparison) -> go.Figure:
    most = max(2.0, *(1.2 * p.rho for p in found.predictions))
    rhos = [most * i / 60 for i in range(61)]
    alphas = [i / 40 for i in range(41)]
    grid = [[utilization(a, r) for r in rhos] for a in alphas]
    figure = go.Figure(go.Contour(x=rhos, y=alphas, z=grid, colorscale="Blues", colorbar={"title": "U"}))
    figure.add_scatter(
        x=[p.rho for p in found.predictions],
        y=[p.alpha for p in found.predictions],
        text=[p.policy for p in found.predictions],
        mode="markers+text",
        textposition="top center",
        marker={"color": "#e45756", "size": 9},
    )
    return _titled(figure, "Overlap against communication: utilization U", "rho = N / C", "alpha")


Curves = tuple[str, str, list[float], list[str], dict[str, list[float]]]


def _by_workers(profile: Profile, cluster: Cluster, policies: Sequence[tuple[str, str]]) -> Curves:
    counts = [1, 2, 4, 8, 16, 32, 64]
    clusters = [resized(cluster, n) for n in counts]
    curves = _curves(profile, clusters, policies)
    ticks = [str(n) for n in counts]
    return "Speed-up against workers", "workers", [float(n) for n in counts], ticks, curves


def _by_bandwidth(profile: Profile, cluster: Cluster, policies: Sequence[tuple[str, str]]) -> Curves:
    clusters = [rescaled(cluster, factor) for factor in _FACTORS]
    ticks = [format_rate(c.slowest.bandwidth) for c in clusters]
    curves = _curves(profile, clusters, policies)
    return "Speed-up against bandwidth", "bandwidth of a worker", list(_FACTORS), ticks, curves


def _curves(
    profile: Profile, clusters: Sequence[Cluster], policies: Sequence[tuple[str, str]]
) -> dict[str, list[float]]:
    return {name: [throughput(profile, c, name, pattern) for c in clusters] for name, pattern in policies}


def _lines(title: str, axis: str, places: list[float], ticks: list[str], curves: dict[str, list[float]]) -> go.Figure:
    figure = go.Figure()
    for name, values in curves.items():
        figure.add_scatter(x=places, y=values, name=name, mode="lines+markers")
    figure.update_xaxes(type="log", tickvals=places, ticktext=ticks)
    return _titled(figure, title, axis, "times one worker")


def _gantt(policy: str, timeline: Timeline) -> go.Figure:
    """The last iteration of the first worker, and of the first hub if there is one."""
    worker = timeline.workers[0]
    start, end = timeline.boundaries[worker][-2:]
    nodes = [worker, *sorted({s.node for s in timeline.spans} - set(timeline.boundaries))[:1]]
    figure = go.Figure()
    for lane in _COLOURS:
        spans = [s for s in timeline.spans if s.lane == lane and s.node in nodes and s.end > start and s.start < end]
        figure.add_bar(
            orientation="h",
            name=lane,
            marker_color=_COLOURS[lane],
            y=[f"{s.node} {'compute' if lane == 'wait' else lane}" for s in spans],
            base=[max(s.start, start) - start for s in spans],
            x=[min(s.end, end) - max(s.start, start) for s in spans],
            hovertext=[f"{s.name}, iteration {s.iteration}" for s in spans],
        )
    figure.update_layout(barmode="overlay", height=320)
    return _titled(figure, f"{policy}: one iteration of {format_seconds(end - start)}", "seconds", "")


def _titled(figure: go.Figure, title: str, x: str, y: str) -> Any:
    figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, template="plotly_white")
    return figure
