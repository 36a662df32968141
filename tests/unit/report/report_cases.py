"""Two small timelines whose figures can be checked by hand."""

from __future__ import annotations

from dovetail.timeline import COMPUTE, RECEIVE, SEND, UPDATE, WAIT, Span, Timeline


def two_workers(*, slower: float = 0.0, notes: tuple[str, ...] = ()) -> Timeline:
    """Two iterations of 1 s on two workers and a hub; worker 1 computes `slower` longer, nothing else changes."""
    spans: list[Span] = []
    for n, late in ((0, 0.0), (1, slower)):
        node = f"worker {n}"
        for i, t in ((0, 5.0), (1, 6.0)):
            spans += [
                Span(node=node, lane=COMPUTE, name="fc forward", start=t, end=t + 0.2, iteration=i),
                Span(node=node, lane=COMPUTE, name="fc backward", start=t + 0.2, end=t + 0.6 + late, iteration=i),
                Span(node=node, lane=SEND, name="fc.weight", start=t + 0.5, end=t + 0.7, iteration=i,
                     nbytes=3_000, peer="hub 0", priority=1),
                Span(node=node, lane=SEND, name="conv.weight", start=t + 0.6, end=t + 0.8, iteration=i,
                     nbytes=1_000, peer="hub 0", priority=0),
                Span(node=node, lane=RECEIVE, name="fc.weight", start=t + 0.8, end=t + 0.9, iteration=i,
                     nbytes=4_000, peer="hub 0"),
                Span(node=node, lane=WAIT, name="fc.weight", start=t + 0.8, end=t + 0.9, iteration=i),
                Span(node=node, lane=UPDATE, name="fc.weight", start=t + 0.9, end=t + 1.0, iteration=i),
            ]  # fmt: skip
    spans.append(Span(node="hub 0", lane=UPDATE, name="fc.weight", start=5.7, end=5.8, iteration=0))
    bounds = {"worker 0": (5.0, 6.0, 7.0), "worker 1": (5.0, 6.0, 7.0)}
    return Timeline(source="engine", policy="p3", spans=tuple(spans), boundaries=bounds, notes=notes)
