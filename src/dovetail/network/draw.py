"""A probe matrix as a page: heat maps of latency and bandwidth, and the map of hosts with their groups."""

from __future__ import annotations

import numpy as np

from dovetail.network.collective import Floats
from dovetail.network.embed import embed, without_outliers
from dovetail.network.group import Grouping, silhouette
from dovetail.network.matrix import ProbeMatrix


def probe_page(matrix: ProbeMatrix, grouping: Grouping) -> str:
    """The HTML page, complete in itself; hosts of a group stand together."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    order = [node for members in grouping.groups for node in members]
    hosts = [matrix.hosts[node] for node in order]
    panels = [("latency, us", np.array(matrix.latency) * 1e6)]
    if matrix.bandwidth:
        panels.append(("bandwidth, Mbit/s", np.array(matrix.bandwidth) * 8e-6))
    titles = [title for title, _ in panels]
    figure = make_subplots(rows=1, cols=len(panels) + 1, subplot_titles=[*titles, "near hosts near each other"])
    for column, (title, values) in enumerate(panels, start=1):
        shown = values[np.ix_(order, order)]
        np.fill_diagonal(shown, np.nan)
        place = column / (len(panels) + 1) - 0.03
        figure.add_trace(
            go.Heatmap(z=shown, x=hosts, y=hosts, name=title, colorscale="Viridis", colorbar={"x": place}),
            row=1,
            col=column,
        )
    points = embed(_clearest(matrix, grouping)).points
    for number, members in enumerate(grouping.groups):
        figure.add_trace(
            go.Scatter(
                x=points[members, 0],
                y=points[members, 1],
                text=[matrix.hosts[node] for node in members],
                mode="markers+text",
                textposition="top center",
                name=f"group {number}",
            ),
            row=1,
            col=len(panels) + 1,
        )
    figure.update_layout(title=f"{len(hosts)} hosts in {len(grouping.groups)} groups", template="plotly_white")
    return str(figure.to_html(include_plotlyjs=True))


def _clearest(matrix: ProbeMatrix, grouping: Grouping) -> Floats:
    """Of latency and inverse bandwidth, the one that shows the groups: racks may differ in one alone."""
    label = {node: number for number, members in enumerate(grouping.groups) for node in members}
    labels = [label[node] for node in range(len(matrix.hosts))]
    return max(matrix.distances(), key=lambda apart: silhouette(without_outliers(apart), labels))
