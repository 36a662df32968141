"""`dovetail plan` at the command line: a file out, a summary to read, one line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_cases import chain

from dovetail import codec
from dovetail.cli import main
from dovetail.network.model import Cluster, Link
from dovetail.plan.policies import make_plan, policies
from dovetail.plan.schedule import Plan

NET = chain([(400_000, 1e-3, 2e-3), (4_000, 1e-3, 2e-3)] + [(40_000, 2e-3, 4e-3)] * 12)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    codec.save(NET, tmp_path / "profile.json")
    return str(tmp_path / "profile.json")


def test_the_plan_is_written_and_summarised(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    line = ["plan", profile, "--workers", "4", "--rate", "500mbit", "--policy", "tac", "-o", str(out)]
    assert main.run(line) == 0
    link = Link(startup=50e-6, bandwidth=62.5e6)
    expected = make_plan(NET, Cluster.uniform(workers=4, link=link), "tac", aggregation="ring")
    assert codec.load(Plan, out) == expected
    shown = capsys.readouterr().out
    assert "14 for 863.3 KiB in 14 parameters" in shown
    assert "... and 4 more" in shown


def test_a_cluster_file_and_standard_output(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster.uniform(workers=2, link=Link(startup=1e-4, bandwidth=1e8), hubs=1)
    codec.save(cluster, tmp_path / "cluster.json")
    line = ["plan", profile, "--cluster", str(tmp_path / "cluster.json"), "--policy", "caramel", "--without", "depth"]
    assert main.run([*line, "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert codec.decode(Plan, printed.out.encode()) == make_plan(NET, cluster, "caramel", without=("depth",))
    assert "caramel" in printed.err


def test_the_list_names_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "--policy", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in [*policies(), "auto"])


def test_the_pattern_is_that_of_training_unless_it_is_named(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options, pattern in ([], "ring"), (["--aggregation", "shuffle"], "shuffle"):
        assert main.run(["plan", profile, "--workers", "4", *options, "-o", "-"]) == 0
        assert codec.decode(Plan, capsys.readouterr().out.encode()).aggregation == pattern


def test_auto_tells_what_it_compared(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", profile, "--workers", "4", "--rate", "100mbit", "--policy", "auto"]) == 0
    assert "ddp in 1 bucket / ring / update at worker" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2", "--policy", "best"], "policy 'best' is unknown"),
        ([], "give the cluster as --cluster FILE, or as --workers N"),
        (["--workers", "2", "--rate", "fast"], "rate 'fast' is not understood"),
        (["--workers", "0"], "a cluster with 0 workers"),
        (["--workers", "2", "--policy", "tac", "--without", "depth"], "has no pass 'depth'"),
        (["--workers", "2", "--policy", "auto", "--update", "hub"], "leave those options out"),
        (["--cluster", "absent.json"], "cannot read absent.json"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    profile: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["plan", profile, *options]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("dovetail: ")
    assert printed.err.count("\n") == 1
