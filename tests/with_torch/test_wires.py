"""Small tensors lie where the default group can carry them; with NCCL alone that is not host memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dovetail.training import clipping, gather, uneven, wires

AWAY = torch.device("meta")  # stands for an accelerator: its tensors have no values


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What a group of two that carries nothing in host memory was given."""
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_group", lambda: SimpleNamespace(_device_types=[AWAY]))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather", lambda every, mine: seen.extend([*every, mine]))
    for name in ("send", "recv"):
        monkeypatch.setattr(dist, name, lambda tensor, **_: seen.append(tensor))
    return seen


def _as_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On machines of their own, so that clocks must be compared."""
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "all_gather_object", lambda found, _: found.__setitem__(slice(None), ["one", "two"]))


def test_norms(carried: list[torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match="meta"):  # when their values are read, after the exchange
        clipping._shared([1.0, None])
    assert [t.device for t in carried] == [AWAY] * 3


def test_votes(carried: list[torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match="meta"):
        uneven.Votes().cast(1)
    assert [t.device for t in carried] == [AWAY] * 3


def test_clocks_of_rank_zero(carried: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    _as_rank(0, monkeypatch)
    assert gather._offset() == 0.0
    assert [t.device for t in carried] == [AWAY] * 16


def test_clocks_of_the_others(carried: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    _as_rank(1, monkeypatch)
    with pytest.raises(RuntimeError, match="meta"):
        gather._offset()
    assert [t.device for t in carried] == [AWAY] * 2


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [(["cpu"], "cpu"), (["cuda"], "cuda"), (["cuda", "cpu"], "cpu"), (["xpu", "cuda"], "xpu"), ([], "cpu")],
)
def test_host_memory_where_the_group_carries_it(
    devices: list[Any], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = SimpleNamespace(_device_types=[torch.device(device) for device in devices])
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_group", lambda: group)
    assert wires.carried_on() == torch.device(chosen)
