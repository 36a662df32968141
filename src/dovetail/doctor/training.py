"""Measured overlap: two ranks train an emulated model on loopback with a slow link, and their own figures are read.

As a script it is one of the ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from dovetail.doctor.check import GOOD, LIMITED, Check
from dovetail.errors import DovetailError
from dovetail.lab import Loopback, environment
from dovetail.units import format_seconds

RATE = 20e6  # bytes per second that a rank may send
COMPUTE = 0.1  # seconds an iteration
SHARE = 0.6  # of that, sending takes
ITERATIONS = 12
PATIENCE = 60.0  # seconds
ENOUGH = 0.5  # of what could be hidden


def overlap() -> Check:
    """Train for a second, and see how much of the communication was hidden."""
    with Loopback(2, 0.0) as lab:
        ranks = [
            lab.popen(
                rank,
                [sys.executable, "-m", __name__],
                env={
                    **environment(lab, rank),
                    "OMP_NUM_THREADS": "1",
                    "DOVETAIL_HUBS": "",
                    "DOVETAIL_METRICS_PORT": "",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [_result(process) for process in ranks]
    figures = said[0]
    alpha: float = figures["alpha"]
    hidden = figures["communication_s"] - figures["exposed_s"]
    enough = alpha >= ENOUGH
    return Check(
        name="overlap",
        state=GOOD if enough else LIMITED,
        found=f"alpha {alpha:.2f}: of {format_seconds(figures['communication_s'])} communication an iteration, "
        f"{format_seconds(max(0.0, hidden))} hide behind {format_seconds(figures['compute_s'])} of computing",
        advice=""
        if enough
        else f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: communication needs a core beside the training",
        figures=figures,
    )


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, complaints = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise DovetailError(f"training on loopback did not end within {PATIENCE:.0f} s") from None
    if process.returncode:
        lines = complaints.strip().splitlines()
        raise DovetailError(f"training on loopback failed: {lines[-1] if lines else 'it gave no reason'}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def train() -> None:
    """One rank: VGG-19's shapes, as small as the rate asks, on an emulated accelerator."""
    import torch
    import torch.distributed as dist

    import dovetail
    from dovetail.bench.emulate import Emulated
    from dovetail.bench.models import published

    dist.init_process_group("gloo")
    layers = published("vgg19")
    whole = sum(layer.params for layer in layers) * 4
    model = Emulated(layers, compute=COMPUTE, scale=SHARE * COMPUTE * RATE / whole, rank=dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    dovetail.distribute(model, optimizer, rate=RATE)
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        model(torch.zeros(1)).sum().backward()
        optimizer.step()
    stats = dovetail.stats(model)
    names = ("alpha", "iteration_s", "compute_s", "communication_s", "exposed_s")
    print(json.dumps({name: getattr(stats, name) or 0.0 for name in names}), flush=True)
    dovetail.shutdown(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
