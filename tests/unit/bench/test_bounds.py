"""Bounds by hand: what the busiest link of each pattern must carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.bench.bounds import (
    HUB,
    RACK_HUBS,
    RING,
    SHUFFLE,
    TWO_LEVEL,
    Network,
    busiest,
    groups_of,
    hubs_of,
    transfer_time,
)
from dovetail.errors import BadInput

S = 1200


def test_flat_network() -> None:
    flat = Network(racks=(0, 0, 0, 0), rate=100.0, hub_rate=400.0, hub_racks=(0,))
    assert busiest(RING, S, flat) == {"worker": 1800.0, "hub": 0.0, "uplink": 0.0}
    assert busiest(SHUFFLE, S, flat) == {"worker": 1800.0, "hub": 0.0, "uplink": 0.0}
    assert busiest(HUB, S, flat) == {"worker": 1200.0, "hub": 4800.0, "uplink": 0.0}
    assert transfer_time(RING, S, flat) == 18.0
    assert transfer_time(HUB, S, flat) == 12.0
    assert transfer_time(HUB, S, Network(racks=(0,) * 4, rate=100.0, hub_rate=100.0, hub_racks=(0,))) == 48.0


def test_uplinks_carry_what_crosses_racks() -> None:
    sorted_racks = Network(racks=(0, 0, 1, 1), rate=0.0, uplink=100.0, hub_racks=(0, 1))
    shuffled = Network(racks=(0, 1, 0, 1), rate=0.0, uplink=100.0)
    assert busiest(RING, S, sorted_racks)["uplink"] == 1800.0  # the ring leaves each rack once
    assert busiest(RING, S, shuffled)["uplink"] == 3600.0
    # Each of 2 hosts exchanges a quarter with each of 2 others, once to reduce and once to gather.
    assert busiest(SHUFFLE, S, shuffled)["uplink"] == 2 * 2 * 2 * S / 4
    assert busiest(HUB, S, sorted_racks)["uplink"] == 2 * S


def test_patterns_that_know_racks_cross_uplinks_less_however_hosts_are_numbered() -> None:
    for racks in ((0, 0, 1, 1), (0, 1, 0, 1)):
        network = Network(racks=racks, rate=0.0, uplink=100.0, hub_racks=(0, 1))
        # Half of the roots are in each rack: a sum crosses once for the one half, a result for the other.
        assert busiest(TWO_LEVEL, S, network)["uplink"] == S
        assert busiest(RACK_HUBS, S, network)["uplink"] == S
    assert groups_of(TWO_LEVEL, (1, 0, 1)) == ((1,), (0, 2))
    assert groups_of(TWO_LEVEL, (0, 0)) is None
    assert groups_of(RING, (0, 1)) is None


@pytest.mark.parametrize("pattern", ["ring", "shuffle", "halving-doubling", "bcube"])
def test_patterns_without_hubs_that_are_even_move_the_least_there_is(pattern: str) -> None:
    loads = busiest(pattern, S, Network(racks=(0,) * 4, rate=1.0))
    assert loads == {"worker": 2 * 3 / 4 * S, "hub": 0.0, "uplink": 0.0}


def test_a_tree_s_inner_nodes_carry_more() -> None:
    assert busiest("tree", S, Network(racks=(0,) * 4, rate=1.0))["worker"] >= 2 * 3 / 4 * S


def test_hubs_are_counted_by_pattern() -> None:
    assert [hubs_of(p, (0, 0, 1)) for p in (HUB, RACK_HUBS, RING)] == [1, 2, 0]


@given(st.lists(st.integers(0, 2), min_size=2, max_size=9))
def test_shuffle_uplink_equals_a_count_over_all_pairs(racks: list[int]) -> None:
    workers = len(racks)
    out = dict.fromkeys(racks, 0.0)
    for a in range(workers):
        for b in range(workers):
            if racks[a] != racks[b]:
                out[racks[a]] += 2 * S / workers  # a's part of b's shard, and a's own shard's result
    network = Network(racks=tuple(racks), rate=1.0)
    assert busiest(SHUFFLE, S, network)["uplink"] == pytest.approx(max(out.values()))


def test_nothing_travels_alone_and_unlimited_links_take_no_time() -> None:
    assert transfer_time(RING, S, Network(racks=(0,), rate=1.0)) == 0.0
    assert transfer_time(SHUFFLE, S, Network(racks=(0, 0), rate=0.0)) == 0.0


def test_an_unknown_pattern_is_named() -> None:
    with pytest.raises(BadInput, match="'star'"):
        busiest("star", S, Network(racks=(0, 0), rate=1.0))
