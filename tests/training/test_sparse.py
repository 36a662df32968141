"""A sparsified plan on the engine: top-k with error feedback, as its definition says, the same on every rank."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from harness import ranks
from networks import batch, build
from torch import nn

from dovetail.errors import BadInput
from dovetail.plan.first_use import first_use
from dovetail.plan.policies import register_policy
from dovetail.plan.slices import slices
from dovetail.plan.sparsify import sparsify
from dovetail.training import distribute, shutdown, stats

STEPS, RATE = 6, 0.2


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch("mlp", rank, step)
    return nn.functional.cross_entropy(model(x), y)


def by_definition(size: int, keep: float) -> dict[str, torch.Tensor]:
    """All ranks in one process: what the largest values of gradient and residual make of the model."""
    model = build("mlp", seed=0)
    residuals = [{n: torch.zeros_like(p) for n, p in model.named_parameters()} for _ in range(size)]
    for step in range(STEPS):
        means = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for rank in range(size):
            model.zero_grad()
            loss(model, rank, step).backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                whole = residuals[rank][name] + parameter.grad
                kept = torch.zeros_like(whole).flatten()
                places = whole.flatten().abs().topk(math.ceil(keep * whole.numel())).indices
                kept[places] = whole.flatten()[places]
                means[name] += kept.view_as(whole) / size
                residuals[rank][name] = whole - kept.view_as(whole)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= RATE * means[name]
    return {n: p.detach() for n, p in model.named_parameters()}


def sparse_training(rank: int, size: int, keep: float) -> tuple[dict[str, Any], int]:
    register_policy("p3-sparse", (slices, first_use, partial(sparsify, keep=keep)))
    model = build("mlp", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    distribute(model, optimizer, policy="p3-sparse")
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, rank, step).backward()
        optimizer.step()
    weights = {n: p.detach().clone().numpy() for n, p in model.named_parameters()}
    found = stats()
    sent = sum(found.sent.values())
    shutdown(model)
    return weights, sent


@pytest.mark.parametrize(("size", "keep"), [(2, 0.05), (3, 0.05), (3, 0.9999)])
def test_training_is_that_of_the_definition(size: int, keep: float) -> None:
    wanted = by_definition(size, keep)
    with ranks(size, sparse_training, args=(keep,), gloo=True) as group:
        results = group.results(timeout=60)
    for weights, _ in results:
        for name, value in wanted.items():
            torch.testing.assert_close(torch.from_numpy(weights[name]), value, rtol=1e-4, atol=1e-6)
            assert (weights[name] == results[0][0][name]).all(), "ranks differ"


def test_few_bytes_travel() -> None:
    with ranks(2, sparse_training, args=(0.02,), gloo=True) as group:
        results = group.results(timeout=60)
    whole = sum(p.nbytes for p in build("mlp", seed=0).parameters())
    parameters = len(list(build("mlp", seed=0).parameters()))
    # Two ranks send each other what they keep, 8 bytes a value and at least one value of each parameter.
    most = STEPS * (8 * 0.02 * whole / 4 + 8 * parameters)
    assert 0 < max(sent for _, sent in results) <= most


def refused(rank: int, size: int) -> list[str]:
    register_policy("p3-sparse", (first_use, partial(sparsify, keep=0.01)))
    model = build("mlp", seed=0)
    said = []
    for options in ({"autotune": True}, {"engine": "c10d"}):
        with pytest.raises(BadInput) as error:
            distribute(model, torch.optim.SGD(model.parameters(), lr=RATE), policy="p3-sparse", **options)
        said.append(str(error.value))
    double = build("mlp", seed=0).double()
    with pytest.raises(BadInput) as error:
        distribute(double, torch.optim.SGD(double.parameters(), lr=RATE), policy="p3-sparse")
    said.append(str(error.value))
    return said


def test_what_cannot_be_sparse_is_refused_in_one_line() -> None:
    with ranks(2, refused, gloo=True) as group:
        for tuned, grouped, double in group.results(timeout=60):
            assert "sparsified plan" in tuned
            assert "leave the pass 'sparsify' out" in grouped
            assert "f64" in double
