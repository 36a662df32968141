"""Figures for Prometheus on /metrics, and which ones a hub has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dovetail.engine.hub import Status
from dovetail.errors import BadInput

_COUNTERS = {
    "jobs": ("dovetail_hub_jobs_registered", "Jobs that were registered."),
    "failed": ("dovetail_hub_jobs_failed", "Jobs that ended because a node was lost or gave up."),
    "refused": ("dovetail_hub_visitors_refused", "Connections that did not pass the handshake."),
    "bytes_received": ("dovetail_hub_received_bytes", "Bytes received on data links."),
    "bytes_sent": ("dovetail_hub_sent_bytes", "Bytes sent on data links."),
    "chunks_summed": ("dovetail_hub_chunks_summed", "Contributions added to a sum."),
    "updates": ("dovetail_hub_updates", "Chunks whose sum was completed or whose optimizer ran."),
}


class HubCollector(Collector):
    """Reads the hub's status when it is scraped."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield GaugeMetricFamily("dovetail_hub_jobs", "Jobs now.", value=status.jobs)
        yield GaugeMetricFamily("dovetail_hub_clients", "Control connections now.", value=status.clients)
        for key, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=status.totals.get(key, 0))


def serve_metrics(collector: Collector, *, host: str, port: int) -> Callable[[], None]:
    """Serve /metrics from a thread of its own; the result ends it."""
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise BadInput(f"cannot serve metrics on {host}:{port}: {error.strerror}; choose another port") from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=2)

    return stop
