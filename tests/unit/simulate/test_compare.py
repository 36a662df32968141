"""`dovetail simulate`: the table, the page and its mistakes."""

from __future__ import annotations

import json

import pytest
from chains import chain

from dovetail import codec
from dovetail.cli.main import run
from dovetail.network.model import Cluster, Link
from dovetail.plan.policies import make_plan
from dovetail.simulate.compare import comparison, plan_for, rescaled, resized, run_all, throughput
from dovetail.simulate.draw import utilization
from dovetail.timeline import Timeline

LINK = Link(startup=5e-5, bandwidth=1e8)


def small():
    return chain([400_000] * 6, forward=[2e-3] * 6, backward=[4e-3] * 6)


def test_identity_of_utilization_holds_for_every_policy():
    profile, cluster = small(), Cluster.uniform(workers=4, link=LINK)
    plans = [make_plan(profile, cluster, name) for name in ("bulk", "fifo", "p3")]
    found = comparison(profile, cluster, run_all(profile, cluster, plans))
    for p in found.predictions:
        assert p.utilization == pytest.approx(utilization(p.alpha, p.rho), rel=1e-6)
    times = [p.iteration_time for p in found.predictions]
    assert times == sorted(times, reverse=True)
    assert found.predictions[2].speedup == pytest.approx(times[0] / times[2])


def test_speedup_grows_with_workers_and_bandwidth_and_stays_below_ideal():
    profile, cluster = small(), Cluster.uniform(workers=4, link=LINK)
    by_workers = [throughput(profile, resized(cluster, n), "p3") for n in (1, 2, 4, 8)]
    assert by_workers == sorted(by_workers)
    assert all(s <= n + 1e-9 for s, n in zip(by_workers, (1, 2, 4, 8), strict=True))
    by_rate = [throughput(profile, rescaled(cluster, f), "fifo") for f in (0.25, 1, 16)]
    assert by_rate == sorted(by_rate)
    assert by_rate[-1] == pytest.approx(4, rel=0.1)


def test_auto_is_at_least_as_good_as_ddp_and_names_its_choice():
    profile, cluster = small(), Cluster.uniform(workers=4, link=LINK)
    plans = [plan_for(profile, cluster, name) for name in ("ddp", "auto")]
    ddp, auto = run_all(profile, cluster, plans).values()
    assert auto.iteration_time <= ddp.iteration_time
    assert plans[1].policy.startswith("auto: ")


@pytest.mark.parametrize(("workers", "hubs", "pattern"), [(2, 0, "shuffle"), (3, 0, "ring"), (3, 1, "hub")])
def test_predicted_is_the_pattern_that_training_takes(workers, hubs, pattern):
    profile, cluster = small(), Cluster.uniform(workers=workers, link=LINK, hubs=hubs)
    assert plan_for(profile, cluster, "p3").aggregation == pattern
    assert plan_for(profile, cluster, "p3", "tree").aggregation == "tree"


def test_command_prints_draws_and_saves(tmp_path, capsys):
    codec.save(small(), tmp_path / "profile.json")
    outputs = ["-o", str(tmp_path / "page.html"), "--timelines", str(tmp_path / "runs"), "--json", "-"]
    command = ["simulate", str(tmp_path / "profile.json"), "--workers", "2", "--rate", "1gbit", "--policy", "bulk,p3"]
    assert run(command + outputs) == 0
    shown = capsys.readouterr()
    printed = json.loads(shown.out)
    assert [p["policy"] for p in printed["data"]["predictions"]] == ["bulk", "p3"]
    assert shown.err.endswith(
        f"{tmp_path}/page.html: the comparison, drawn\n{tmp_path}/runs: 2 timelines for `dovetail report`\n"
    )
    page = (tmp_path / "page.html").read_text()
    assert "https://" not in page.split("<body")[1]
    for title in ("Iteration time by policy", "utilization U", "against workers", "against bandwidth", "one iteration"):
        assert title in page
    assert codec.load(Timeline, tmp_path / "runs" / "p3.json").source == "simulator"


def test_the_table_counts_one_hub_and_shows_no_overlap_where_there_is_nothing_to_hide(capsys):
    command = ["simulate", "--model", "resnet50", "--scale", "1e-5", "--compute", "0.01", "--hubs", "1"]
    assert run([*command, "--policy", "ddp,p3"]) == 0
    title, _, ddp, p3, *_ = capsys.readouterr().out.splitlines()
    assert title.strip() == "resnet50 on 4 workers, 1 hub at 1 Gbit/s"
    assert ddp.split()[-2] == "-", "its link is in use for less than a hundredth of the iteration"
    assert 0.5 < float(p3.split()[-2]) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model was given; name the profile.json that `dovetail trace` wrote, or a published network"),
        (["p.json", "--model", "resnet50"], "both p.json and --model resnet50 were given"),
        (["--model", "resnet50", "--rate", "fast"], "rate 'fast' is not understood"),
        (["--model", "resnet50", "--policy", "best"], "policy 'best' is unknown"),
        (["--model", "resnet50", "--straggler", "x"], "straggler 'x' is not understood"),
        (["--model", "resnet50", "--workers", "5", "--racks", "2"], "5 workers do not fill 2 racks"),
        (["--model", "resnet50", "--policy", ","], "no policy to simulate"),
        (["--model", "resnet50", "--policy", "p3", "-o", "/nowhere/page.html"], "cannot write /nowhere/page.html"),
    ],
)
def test_mistakes_get_one_line(arguments, message, capsys):
    assert run(["simulate", "--workers", "2", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dovetail: ")
    assert message in error
    assert error.count("\n") == 1
