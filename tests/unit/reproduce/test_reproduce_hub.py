"""Tables 2.1, 4.1 and 6.3 of the thesis."""

from __future__ import annotations

import math

import pytest

from dovetail.reproduce import hub


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_multiples_of_table_2_1_follow_from_the_routes(workers):
    expected = {"CC": 2 * (workers - 1), "CS": 4 * (workers - 1) / workers, "NCC": 2 * workers, "NCS": 2}
    for deployment, multiple in expected.items():
        assert hub.host_multiple(deployment, workers) == pytest.approx(multiple)


@pytest.mark.parametrize("model", hub.TABLE_2_1)
def test_all_entries_of_table_2_1_within_3_percent(model):
    for deployment, entry in zip(hub.DEPLOYMENTS, hub.TABLE_2_1[model], strict=True):
        assert hub.needed(model, deployment) == pytest.approx(entry, rel=0.03)


@pytest.mark.parametrize("model", hub.TABLE_2_1)
def test_the_fitted_ratio_is_near_what_table_6_1_prints(model):
    assert hub._from_table_6_1(model) == pytest.approx(hub.fitted_rate(model), rel=0.11)


@pytest.mark.parametrize(("racks", "per_rack"), [(2, 2), (4, 4), (3, 5)])
def test_exact_counts_of_table_4_1(racks, per_rack):
    nodes = racks * per_rack
    shuffle = hub.traffic("shuffle", racks=racks, per_rack=per_rack)
    assert shuffle == hub.Traffic(2, 2 * (nodes - 1), 2 * per_rack * (racks - 1))
    two_level = hub.traffic("two-level", racks=racks, per_rack=per_rack)
    assert two_level == hub.Traffic(4, 2 * (nodes - 1), 2 * (racks - 1))
    ring = hub.traffic("ring", racks=racks, per_rack=per_rack)
    assert (ring.rounds, ring.total) == (2 * (nodes - 1), 2 * (nodes - 1))
    # A chain of all nodes crosses racks - 1 borders when it starts at one, else one more; it runs there and back.
    assert ring.across == pytest.approx(2 * (racks - 1 / per_rack))


@pytest.mark.parametrize(("racks", "per_rack"), [(2, 2), (4, 4), (2, 8)])
def test_exact_counts_of_halving_doubling(racks, per_rack):
    nodes = racks * per_rack
    found = hub.traffic("halving-doubling", racks=racks, per_rack=per_rack)
    assert found.rounds == 2 * math.log2(nodes)
    assert found.total == 2 * (nodes - 1)


def test_more_oversubscription_is_cheaper_and_beats_the_baseline():
    lines = [line for line in hub.run().lines if line.where == "table 6.3"]
    future = [line.ours for line in lines if "Future" in line.what]
    assert future == sorted(future)
    assert all(abs(line.off) < 0.12 for line in lines if line.off is not None)
