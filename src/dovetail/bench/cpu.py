"""How much of this machine's cores was free, all programs together."""

from __future__ import annotations

from pathlib import Path

Cpu = tuple[int, int]  # ticks in all, ticks idle


def read_cpu() -> Cpu:
    """Ticks of all cores since boot."""
    return parse_cpu(Path("/proc/stat").read_text())


def parse_cpu(text: str) -> Cpu:
    """From the text of /proc/stat; waiting for a disk counts as idle, a guest's time is not counted twice."""
    ticks = [int(value) for value in text.splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def idle_share(before: Cpu, after: Cpu) -> float:
    """Share of the cores' time between two readings that nothing used."""
    total = after[0] - before[0]
    return (after[1] - before[1]) / total if total else 0.0
