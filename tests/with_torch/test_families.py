"""Every published network has a real small relative that learns."""

from __future__ import annotations

import pytest
import torch

from dovetail.bench.families import loss
from dovetail.bench.models import names, real_model


@pytest.mark.parametrize("name", names())
def test_real_model_learns_its_batch(name: str) -> None:
    model, make_batch = real_model(name)
    inputs, target = make_batch(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    values = []
    for _ in range(6):
        optimizer.zero_grad()
        value = loss(model(*inputs), target)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0]


def test_batches_and_weights_follow_the_seed_only() -> None:
    first, make_batch = real_model("gpt2")
    torch.manual_seed(99)
    second, _ = real_model("gpt2")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(make_batch(3)[1], make_batch(3)[1])
    assert not torch.equal(make_batch(3)[1], make_batch(4)[1])
