"""The native kernels against torch's own: sums in every dtype, fused updates in torch's formulas."""

from __future__ import annotations

import pytest
import torch

from dovetail import _native

CODES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
WIDE = {torch.float32: torch.float32, torch.float64: torch.float64}
RULES = {"sgd": 1, "adam": 2, "adamw": 3}


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("count", [0, 1, 7, 16, 1003])
def test_mean_of_three_is_rounded_once(dtype: torch.dtype, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    parts = [torch.randn(count, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]
    wide = WIDE.get(dtype, torch.float32)
    total, out = torch.empty(count, dtype=wide), torch.empty(count, dtype=dtype)
    _native.start_sum(CODES[dtype], total.data_ptr(), parts[0].data_ptr(), count)
    for part in parts[1:]:
        _native.add_to(CODES[dtype], total.data_ptr(), part.data_ptr(), count)
    _native.finish_sum(CODES[dtype], total.data_ptr(), out.data_ptr(), count, 0.25)
    expected = ((parts[0].to(wide) + parts[1].to(wide) + parts[2].to(wide)) * 0.25).to(dtype)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_survives_the_way_there_and_back(dtype: torch.dtype) -> None:
    values = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    total, out = torch.empty(values.numel()), torch.empty_like(values)
    _native.start_sum(CODES[dtype], total.data_ptr(), values.data_ptr(), values.numel())
    assert torch.equal(total.nan_to_num(nan=7.0), values.float().nan_to_num(nan=7.0))
    _native.finish_sum(CODES[dtype], total.data_ptr(), out.data_ptr(), values.numel(), 1.0)
    number = ~values.isnan()
    assert torch.equal(out[number].view(torch.int16), values[number].view(torch.int16))
    assert out[~number].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrowing_rounds_to_nearest_even_as_torch_does(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(100_000, generator=generator) * torch.logspace(-9, 6, 100_000)
    values = torch.cat([values, torch.tensor([float("inf"), -float("inf"), 65519.9, 65520.0, 2.0**-25, 2.0**-24])])
    out = torch.empty(values.numel(), dtype=dtype)
    _native.finish_sum(CODES[dtype], values.data_ptr(), out.data_ptr(), values.numel(), 1.0)
    assert torch.equal(out, values.to(dtype))


def _run_both(optimizer: torch.optim.Optimizer, rule: str, flags: int, dtype: torch.dtype, steps: int) -> tuple:
    """Torch's parameter and ours after `steps` updates with the same gradients (each the sum of two halves)."""
    (param,) = optimizer.param_groups[0]["params"]
    ours = param.detach().clone()
    states = [torch.zeros_like(ours), torch.zeros_like(ours)]
    generator = torch.Generator().manual_seed(3)
    for step in range(1, steps + 1):
        total = torch.randn(param.numel(), generator=generator, dtype=dtype)
        group = optimizer.param_groups[0]
        beta1, beta2 = group.get("betas", (0.0, 0.0))
        hyper = [group["lr"], group.get("momentum", 0.0), group.get("dampening", 0.0), group["weight_decay"]]
        hyper += [beta1, beta2, group.get("eps", 0.0)]
        _native.apply_update(
            CODES[dtype], RULES[rule], flags, hyper, step, 0.5, step == 1,
            total.data_ptr(), ours.data_ptr(), states[0].data_ptr(), states[1].data_ptr(), ours.numel(),
        )  # fmt: skip
        param.grad = total * 0.5
        optimizer.step()
    return param.detach(), ours


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.01},
        {"lr": 0.05, "momentum": 0.9},
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 1e-4},
        {"lr": 0.05, "momentum": 0.9, "nesterov": True},
        {"lr": 0.05, "momentum": 0.9, "maximize": True},
    ],
)
def test_sgd_is_torchs_to_the_bit(options: dict, dtype: torch.dtype) -> None:
    param = torch.nn.Parameter(torch.randn(1003, generator=torch.Generator().manual_seed(2), dtype=dtype))
    flags = (1 if options.get("nesterov") else 0) | (2 if options.get("maximize") else 0)
    torchs, ours = _run_both(torch.optim.SGD([param], **options), "sgd", flags, dtype, steps=20)
    assert torch.equal(torchs, ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", ["adam", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.3, 0.9)])
def test_adam_is_torchs_up_to_the_last_bits(rule: str, weight_decay: float, betas: tuple, dtype: torch.dtype) -> None:
    # Not to the bit: torch's vector square root is not correctly rounded, ours is.
    param = torch.nn.Parameter(torch.randn(1003, generator=torch.Generator().manual_seed(2), dtype=dtype))
    kind = torch.optim.Adam if rule == "adam" else torch.optim.AdamW
    optimizer = kind([param], lr=1e-2, weight_decay=weight_decay, betas=betas)
    torchs, ours = _run_both(optimizer, rule, 0, dtype, steps=20)
    torch.testing.assert_close(torchs, ours, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-7)
