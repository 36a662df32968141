"""The papers' worked examples exactly, and the direction of their headline results."""

from __future__ import annotations

import json

import pytest

from dovetail.cli.main import run
from dovetail.reproduce import caramel, ibatch, p3, tictac


@pytest.mark.parametrize(("urgent", "units"), [(False, 4), (True, 2)])
def test_p3_figure_4(urgent, units):
    assert p3.gap(urgent=urgent) == pytest.approx(units, rel=0.01)


@pytest.mark.parametrize(("sliced", "units"), [(False, 10), (True, 7)])
def test_p3_figure_6(sliced, units):
    assert p3.synchronisation(sliced=sliced) == pytest.approx(units)


def test_p3_gains_where_the_network_is_the_limit_and_not_where_it_is_not():
    slow, _, urgent = p3.times("resnet50", 4)
    assert slow / urgent > 1.15
    slow, _, urgent = p3.times("resnet50", 40)
    assert slow / urgent == pytest.approx(1.0, abs=0.02)


def test_the_baseline_splits_large_arrays_over_the_servers():
    profile = p3.chain([100, 8_000_000], 1.0)
    sizes = sorted(t.nbytes for t in p3.kvstore(profile, 4).transfers)
    assert sizes == [100, 2_000_000, 2_000_000, 2_000_000, 2_000_000]


def test_an_order_gains_more_for_inference_than_for_training():
    model = next(m for m in tictac.TABLE_1 if m.name == "Inception v3")
    inference, training = (tictac.gain(model, workers=4, servers=1, training=t) for t in (False, True))
    assert inference > training > 5


def test_profiles_have_the_size_that_table_1_prints():
    for model in tictac.TABLE_1:
        assert tictac.profile(model, training=True).nbytes / 2**20 == pytest.approx(model.mib, rel=1e-3)


@pytest.mark.parametrize(("model", "nodes"), [("GoogLeNet", 30), ("VGG19-22K", 30)])
def test_ibatch_is_within_a_twentieth_at_30_nodes(model, nodes):
    default, _, batched = ibatch.speedups(model, nodes)
    assert default == pytest.approx(ibatch.PRINTED[model, nodes][0], rel=1e-3)
    assert batched == pytest.approx(ibatch.PRINTED[model, nodes][2], rel=0.05)


def test_vgg19_22k_has_229_million_parameters():
    assert ibatch._profile("VGG19-22K", 1.0).nbytes / 4e6 == pytest.approx(229, rel=0.01)


def test_depth_pays_for_large_transfers_only():
    assert caramel.transfer_time(100_000_000, 8) < 0.6 * caramel.transfer_time(100_000_000, 1)
    assert caramel.transfer_time(100_000, 8) > caramel.transfer_time(100_000, 1)


def test_command_prints_json_and_names_the_papers(capsys):
    assert run(["reproduce", "hub", "--json", "-"]) == 0
    study = json.loads(capsys.readouterr().out)["data"]["studies"][0]
    assert study["paper"] == "hub"
    assert len([line for line in study["lines"] if line["where"] == "table 2.1"]) == 16
    assert run(["reproduce", "poseidon"]) == 2
    assert "paper 'poseidon' is unknown; it is one of tictac, p3, ibatch, caramel, hub" in capsys.readouterr().err
