"""Benches end to end, in small: the JSON has its promised form, and the figures make sense."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import codec
from dovetail.bench import allreduce, stage, train
from dovetail.bench.allreduce import bench_allreduce
from dovetail.bench.orders import Workload
from dovetail.bench.overhead import bench_overhead
from dovetail.bench.pull import bench_pull
from dovetail.bench.stage import Site
from dovetail.bench.systems import chosen
from dovetail.bench.train import Setup, bench_train
from dovetail.bench.urgent import bench_urgent
from dovetail.timeline import DECIDE, LANES, WAIT, Timeline

TINY = Workload(model="alexnet", scale=0.004, compute=0.06)


def dovetail(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dovetail.cli.main", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=170, check=False)


@pytest.mark.lab
def test_train_gives_the_promised_json_and_timelines(tmp_path: Path) -> None:
    workload = ["--model", "alexnet", "--scale", "0.004", "--compute", "0.06", "--iters", "3"]
    network = ["--workers", "2", "--rate", "200mbit", "--systems", "ddp,sharded,hub", "--predict"]
    done = dovetail("bench", "train", *workload, *network, "--json", "-", "--save", str(tmp_path))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert {"bench", "model", "workers", "rate", "bytes", "compute_s", "systems"} <= set(result)
    assert result["bench"] == "train"
    assert result["rate"] == 25e6
    assert [(s["name"], s["machines"]) for s in result["systems"]] == [("ddp", 2), ("sharded", 2), ("hub", 3)]
    for system in result["systems"]:
        assert {"iteration_s", "floor_s", "bound_s", "alpha", "cpu_idle", "policy"} <= set(system)
        assert system["floor_s"] <= system["predicted_s"] < 10
        times = system["iteration_s"]
        assert 0.05 < times["min"] <= times["median"] <= times["max"] < 10
        assert 0.06 <= system["floor_s"] <= system["bound_s"]
        assert system["alpha"] <= 1.01
        assert 0 <= system["cpu_idle"] <= 1
        line = codec.load(Timeline, tmp_path / f"{system['name']}.json")
        assert len(line.iteration_times) == 3
        assert {span.lane for span in line.spans} >= set(LANES) - {WAIT, DECIDE}


@pytest.mark.lab
def test_the_hub_gets_one_worker_fewer_on_the_same_machines() -> None:
    setup = Setup(
        workload=Workload(model="resnet50", scale=0.001, compute=None),
        systems=chosen(["hub"]),
        site=Site(workers=3, rate=0.0),
        iterations=2,
        same_machines=True,
    )
    result = bench_train(setup)
    assert [(s.name, s.workers, s.machines) for s in result.systems] == [("hub", 2, 3)]
    assert result.compute_s > 0


@pytest.mark.lab
def test_allreduce_over_two_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "BUDGET", 0.4)
    site = Site(workers=3, rate=25e6, racks=2, uplink=12.5e6, shuffle_seed=1)
    result = bench_allreduce(site, sizes=[4096, 400_000], systems=["gloo", "two-level", "rack-hubs"])
    assert [(s.name, s.machines) for s in result.systems] == [("gloo", 3), ("two-level", 3), ("rack-hubs", 5)]
    for system in result.systems:
        assert [size.nbytes for size in system.sizes] == [4096, 400_000]
        large = system.sizes[1]
        assert large.bound_s * 0.8 < large.min_s <= large.median_s <= large.max_s


@pytest.mark.lab
def test_an_urgent_chunk_overtakes_and_a_patient_one_does_not() -> None:
    result = bench_urgent(rate=12.5e6, small=4096, large=6 << 20, rounds=1)
    assert result.priority_s.median < result.fifo_s.median / 2


@pytest.mark.lab
def test_pulls_in_a_good_order_end_sooner_than_in_any() -> None:
    site = Site(workers=1, rate=12.5e6)
    result = bench_pull(site, Workload(model="vgg16", scale=0.005, compute=0.3), orders=["tac", "random"], rounds=3)
    tac, other = result.orders
    assert result.bytes / 12.5e6 < result.bound_s == 0.3
    assert 0.3 <= tac.pass_s.median < other.pass_s.median


def test_overhead_is_what_plain_steps_do_not_have() -> None:
    result = bench_overhead(workers=2, params=20, step=0.02, rounds=2, steps=2)
    assert result.params == 20
    assert result.plain_s.median > 0
    assert 0 < result.calls.median < 50  # something is submitted and waited for
    assert result.wall.high < 50


def test_without_a_lab_systems_keep_to_the_rate_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stage, train):
        monkeypatch.setattr(module, "available", lambda: (False, "not today"))
    setup = Setup(workload=TINY, systems=chosen(["ddp", "hub"]), site=Site(workers=2, rate=2.5e6), iterations=2)
    result = bench_train(setup)
    assert [s.name for s in result.systems] == ["hub"]
    assert any("not today" in note for note in result.notes)
    assert any(note.startswith("ddp left out") for note in result.notes)
    assert result.systems[0].alpha is None
    # Its own limit holds: about 1 MB must pass 2.5 MB/s.
    assert result.systems[0].iteration_s.median > 0.7 * result.bytes / 2.5e6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --model vgg99", "model 'vgg99' is not known"),
        ("train --systems ddp,nccl", "system 'nccl' is not known"),
        ("train --compute fast", "time 'fast' is not understood"),
        ("train --rate 500", "has no known unit"),
        ("train --racks 9", "9 racks for 4 hosts"),
        ("train --policy p3,p4", "policy 'p4' is not known"),
        ("train --predict --compute real", "emulated layers only"),
        ("allreduce --systems nccl", "system 'nccl' is not known"),
        ("pull --orders tac,alphabetic", "order 'alphabetic' is not known"),
        ("overhead --workers 1", "on 1 workers"),
        ("allreduce --sizes 1", "4 bytes"),
        ("urgent --rounds 0", "0 rounds"),
    ],
)
def test_bad_input_is_one_line(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from dovetail.cli.main import run

    assert run(["bench", *arguments.split()]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
