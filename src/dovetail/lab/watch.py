"""Link use of every host of a lab over time, as spans of a timeline."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from dovetail.lab import counters
from dovetail.lab.box import Lab
from dovetail.lab.hosts import Hosts
from dovetail.timeline import RECEIVE, SEND, Span


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes a host sent and received between two samples (seconds of the monotonic clock)."""

    host: str
    start: float
    end: float
    sent: int
    received: int


class Watch:
    """Samples while the block runs; `uses` holds the result afterwards, nothing if the lab has no links to watch."""

    def __init__(self, lab: Hosts) -> None:
        self.uses: tuple[Use, ...] = ()
        self._hosts = {node.name for node in lab.layout.nodes}
        self._process: subprocess.Popen[bytes] | None = None
        if isinstance(lab, Lab):
            self._process = subprocess.Popen(
                lab.fabric_command([sys.executable, "-I", counters.__file__]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        if kind is not None:
            self._process.kill()
        output, _ = self._process.communicate(timeout=30)
        if kind is None:
            self.uses = tuple(differences(json.loads(output), self._hosts))


def differences(samples: Iterable[tuple[float, dict[str, tuple[int, int]]]], hosts: set[str]) -> Iterable[Use]:
    """What moved between samples; a host's device here is the far end of its link: it receives what the host sent."""
    before: dict[str, tuple[int, int]] = {}
    last = 0.0
    for now, changed in samples:
        for name, (sent, received) in changed.items():
            if name in hosts and name in before:
                yield Use(name, last, now, sent - before[name][0], received - before[name][1])
            before[name] = (sent, received)
        last = now


def link_spans(uses: Iterable[Use], nodes: dict[str, str], rate: float) -> Iterable[Span]:
    """One span for each direction and sample: as long as its bytes occupy a link of `rate` bytes per second."""
    for use in uses:
        if use.host in nodes:
            for lane, nbytes in ((SEND, use.sent), (RECEIVE, use.received)):
                length = min(use.end - use.start, nbytes / rate)
                if length > 0:
                    yield Span(
                        node=nodes[use.host],
                        lane=lane,
                        name="link",
                        start=use.start,
                        end=use.start + length,
                        iteration=0,
                        nbytes=nbytes,
                    )
