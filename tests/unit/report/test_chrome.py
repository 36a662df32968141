"""The Chrome trace: every span once, nothing overlapping on a thread, equal to the one kept for comparison."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from report_cases import two_workers

from dovetail.report import chrome

GOLDEN = Path(__file__).parents[2] / "golden" / "two_workers.chrome.json"


def events(*names: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(chrome.render({name: two_workers() for name in names}))["traceEvents"]
    return found


def test_equal_to_the_golden_file() -> None:
    shown = json.loads(chrome.render({"p3": two_workers(notes=("slices grew",))}))
    assert shown == json.loads(GOLDEN.read_text(encoding="utf-8")), "intended? write the new trace to tests/golden"


def test_every_span_is_there_with_its_facts_in_microseconds() -> None:
    complete = [e for e in events("p3") if e["ph"] == "X" and not e["name"].startswith("iteration ")]
    assert len(complete) == len(two_workers().spans)
    sent = next(e for e in complete if e["name"] == "conv.weight")
    assert (sent["ts"], sent["dur"]) == (600_000, 200_000)
    assert sent["args"] == {"iteration": 0, "bytes": 1_000, "priority": 0, "peer": "hub 0"}


def test_nothing_overlaps_on_a_thread() -> None:
    threads: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events("one", "two"):
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert all(a[1] <= b[0] + 1e-6 for spans in threads.values() for a, b in pairwise(sorted(spans)))


def test_each_node_of_each_run_is_a_process_of_its_own() -> None:
    names = {e["pid"]: e["args"]["name"] for e in events("one", "two") if e["name"] == "process_name"}
    assert list(names.values()) == [
        f"{run}: {node}" for run in ("one", "two") for node in ("worker 0", "worker 1", "hub 0")
    ]
    lanes = {e["args"]["name"] for e in events("one") if e["name"] == "thread_name"}
    assert lanes == {"iteration", "compute", "update", "wait", "send", "send 2", "receive"}
