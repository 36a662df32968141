"""Hosts, racks and addresses are decided before anything is built."""

from __future__ import annotations

import pytest

from dovetail.errors import BadInput
from dovetail.lab.layout import layout


def test_racks_are_equal_and_contiguous() -> None:
    assert [n.rack for n in layout(hosts=6, rate=1e6, racks=3).hosts] == [0, 0, 1, 1, 2, 2]


def test_a_shuffle_keeps_rack_sizes_and_depends_on_the_seed_alone() -> None:
    def racks(seed: int) -> list[int]:
        return [n.rack for n in layout(hosts=8, rate=1e6, racks=2, shuffle_seed=seed).hosts]

    assert racks(1) == racks(1)
    assert sorted(racks(1)) == [0] * 4 + [1] * 4
    assert any(racks(seed) != sorted(racks(seed)) for seed in range(3))


def test_a_hub_is_as_fast_as_all_hosts_unless_told() -> None:
    assert layout(hosts=4, rate=5e6, hubs=1).hubs[0].rate == 20e6
    assert layout(hosts=4, rate=5e6, hubs=1, hub_rate=0.0).hubs[0].rate == 0.0


def test_addresses_differ() -> None:
    nodes = layout(hosts=20, rate=0.0, hubs=20).nodes
    assert len({n.address for n in nodes}) == len({n.name for n in nodes}) == 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": 0, "rate": 1e6}, "0 hosts"),
        ({"hosts": 2, "rate": 1e6, "racks": 3}, "3 racks for 2 hosts"),
        ({"hosts": 2, "rate": 1e6, "uplink": 1e6}, "--racks 2"),
        ({"hosts": 2, "rate": -1.0}, "rate is -1.0"),
    ],
)
def test_bad_layouts_are_told_in_one_line(options: dict[str, float], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        layout(**options)  # type: ignore[arg-type]
