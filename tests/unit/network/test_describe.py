"""Clusters in a few numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail import codec
from dovetail.cli.main import run
from dovetail.errors import BadInput
from dovetail.network.describe import describe, worker_links
from dovetail.network.model import Cluster


def test_one_rate_for_all_and_one_each() -> None:
    assert [k.bandwidth for k in worker_links(3, [5.0], 0.0)] == [5.0, 5.0, 5.0]
    assert [k.bandwidth for k in worker_links(2, [5.0, 7.0], 0.0)] == [5.0, 7.0]


def test_hub_carries_all_workers_over_its_interfaces_by_default() -> None:
    cluster = describe(worker_links(4, [100.0], 1e-5), hubs=1, interfaces=2)
    assert cluster.hubs[0].link.bandwidth * cluster.hubs[0].interfaces == 400.0


def test_uplinks_are_their_rack_over_the_oversubscription() -> None:
    cluster = describe(worker_links(4, [100.0, 100.0, 50.0, 50.0], 1e-5), racks=2, oversubscription=4)
    assert {rack: link.bandwidth for rack, link in cluster.uplinks.items()} == {"rack 0": 50.0, "rack 1": 25.0}
    assert [host.rack for host in cluster.workers] == ["rack 0", "rack 0", "rack 1", "rack 1"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: worker_links(0, [1.0], 0.0), "0 workers"),
        (lambda: worker_links(3, [1.0, 2.0], 0.0), "2 rates for 3 workers"),
        (lambda: worker_links(1, [0.0], 0.0), "bandwidth is 0.0"),
        (lambda: describe(worker_links(3, [1.0], 0.0), racks=2), "3 workers do not fill 2 racks"),
        (lambda: describe(worker_links(2, [1.0], 0.0), oversubscription=4), "give 2 racks or more"),
        (lambda: describe(worker_links(2, [1.0], 0.0), racks=2, oversubscription=0), "oversubscription is 0"),
        (lambda: describe(worker_links(2, [1.0], 0.0), hubs=-1), "-1 hubs"),
    ],
)
def test_bad_clusters_are_named(call: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()  # type: ignore[operator]


def test_cli_describes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "cluster.json"
    words = "network --workers 4 --rate 500mbit --startup 50us --hubs 1 --hub-rate 2gbit --racks 2 --oversubscription 4"
    assert run([*words.split(), "-o", str(target), "--json", "-"]) == 0
    cluster = codec.load(Cluster, target)
    assert [host.link.bandwidth for host in cluster.workers] == [62.5e6] * 4
    assert cluster.hubs[0].link.bandwidth == 250e6
    assert cluster.uplinks["rack 1"].bandwidth == 31.25e6
    said = capsys.readouterr()
    assert len(json.loads(said.out)["network"]["workers"]) == 4
    assert said.err == f"{target}: 4 workers at 500 Mbit/s, 1 hub, 2 racks\n"


def test_cli_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "cluster.json"
    assert run(["network", "--workers", "2", "--rate", "100mbit,1gbit", "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}: 2 workers at 100 Mbit/s to 1 Gbit/s\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "4"], "needs both --workers and --rate"),
        ([], "RANK is not set"),
        (["--workers", "2", "--rate", "fast"], "rate 'fast'"),
        (["--workers", "2", "--rate", "1gbit", "-o", "/dev/null/x"], "cannot write /dev/null/x"),
        (["--workers", "2", "--rate", "1gbit", "-o", "-", "--json", "/dev/null/x"], "cannot write /dev/null/x"),
    ],
)
def test_cli_mistakes_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert run(["network", *arguments]) == 2
    assert words in capsys.readouterr().err
