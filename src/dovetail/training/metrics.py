"""A training rank's figures for Prometheus: as text, or on /metrics of an own port."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dovetail.training.stats import Stats

_LABELS = ("job", "rank")
_GAUGES: tuple[tuple[str, str, Callable[[Stats], float | None]], ...] = (
    ("iteration_seconds", "Of one iteration.", lambda s: s.iteration_s),
    ("compute_seconds", "Of one iteration in which the training thread did not wait.", lambda s: s.compute_s),
    ("overlap_ratio", "Share of the shorter of computing and communicating that was hidden.", lambda s: s.alpha),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("iterations", "Iterations.", lambda s: s.iterations),
    ("communication_seconds", "Time in which a link was in use.", lambda s: s.communication_total_s),
    ("exposed_communication_seconds", "Time in which training waited for results.", lambda s: s.exposed_total_s),
    ("replans", "Changes of plan.", lambda s: s.replans),
)


class StatsCollector(Collector):
    """Asks for the figures when it is scraped."""

    def __init__(self, read: Callable[[], Iterable[Stats]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        found = list(self._read())
        for name, text, gauge in _GAUGES:
            family: Metric = GaugeMetricFamily(f"dovetail_{name}", text, labels=_LABELS)
            for stats in found:
                value = gauge(stats)
                if value is not None:
                    family.add_metric(_labels(stats), value)  # type: ignore[attr-defined]
            yield family
        for name, text, counter in _COUNTERS:
            family = CounterMetricFamily(f"dovetail_{name}", text, labels=_LABELS)
            for stats in found:
                family.add_metric(_labels(stats), counter(stats))
            yield family
        late = GaugeMetricFamily(
            "dovetail_lateness_seconds", "From the first rank's last gradient to this one's.", labels=(*_LABELS, "of")
        )
        sent = CounterMetricFamily("dovetail_sent_bytes", "Payload sent.", labels=(*_LABELS, "priority"))
        for stats in found:
            for rank, seconds in stats.lateness.items():
                late.add_metric([*_labels(stats), str(rank)], seconds)
            for priority, nbytes in sorted(stats.sent.items()):
                sent.add_metric([*_labels(stats), str(priority)], nbytes)
        yield late
        yield sent


def _labels(stats: Stats) -> list[str]:
    return [stats.job, str(stats.rank)]


def render(stats: Stats) -> str:
    """One reading in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(StatsCollector(lambda: [stats]))
    return generate_latest(registry).decode()
