"""`dovetail doctor` as a user runs it: everything is looked at, in one screen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.doctor import urgent
from dovetail.doctor.training import ENOUGH


def test_one_screen_and_figures_that_make_sense(tmp_path: Path) -> None:
    report = tmp_path / "doctor.json"
    argv = [sys.executable, "-m", "dovetail.cli.main", "doctor", "--facing", "127.0.0.1", "--json", str(report)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) < 24
    found = {check["name"]: check for check in json.loads(report.read_text())["checks"]}
    assert list(found) == ["versions", "network", "lab", "priorities", "overlap"]
    assert found["network"]["figures"]["device"] == "lo"
    times = found["priorities"]["figures"]
    assert 0 < 2 * times["urgent_s"] < times["in_order_s"]
    training = found["overlap"]["figures"]
    assert 0.09 < training["compute_s"] <= training["iteration_s"]
    # At the rank's own limit the gradients need 60 ms; frames and waits for the other rank may stretch it.
    assert 0.03 < training["communication_s"] < 10
    # Computing is emulated, so that a busy machine takes little from it: hardly anything hidden is no overlap at all.
    hidden = training["communication_s"] - training["exposed_s"]
    shorter = min(training["compute_s"], training["communication_s"])
    assert 0.1 < training["alpha"] == pytest.approx(min(1.0, hidden / shorter))
    assert f"alpha {training['alpha']:.2f}: " in done.stdout
    assert (found["overlap"]["state"] == "good") == (training["alpha"] >= ENOUGH)


def test_equal_priorities_are_not_taken_for_live_ones(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    real = urgent.measure
    monkeypatch.setattr(urgent, "ROUNDS", 1)
    monkeypatch.setattr(urgent, "measure", lambda _: real(1))
    assert urgent.priorities().state == "broken"
