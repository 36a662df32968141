"""Traces of real models: the same parameters, order of use and order of gradients as a real step has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dovetail import codec
from dovetail.bench.families import loss
from dovetail.bench.models import real_model
from dovetail.cli.main import run
from dovetail.errors import BadInput
from dovetail.trace.graph import Op, Profile
from dovetail.trace.hooks import Hooked
from dovetail.trace.joint import Joint
from dovetail.trace.record import calibrated, record, trace
from dovetail.trace.step import Step


def hook_order(model: nn.Module, step: object) -> list[str]:
    """Parameter names in the order in which autograd completes their gradients."""
    order: list[str] = []
    handles = [
        p.register_post_accumulate_grad_hook(lambda _, n=n: order.append(n)) for n, p in model.named_parameters()
    ]
    step().backward()  # type: ignore[operator]
    for handle in handles:
        handle.remove()
    return order


def ranked(ranks: dict[str, int]) -> list[str]:
    return sorted(ranks, key=ranks.__getitem__)


@pytest.mark.parametrize("name", ["vgg19", "resnet50", "inception_v3", "gpt2"])
def test_exported_graph_agrees_with_the_real_step(name: str) -> None:
    model, make_batch = real_model(name)
    inputs, target = make_batch(0)
    report = record(model, inputs, lambda out: loss(out, target), runs=1)
    profile = report.profile
    assert (report.method, report.notes) == ("export", ())
    assert ranked(profile.production) == hook_order(model, lambda: loss(model(*inputs), target))
    hooked = record(model, inputs, lambda out: loss(out, target), runs=1, export=False).profile
    assert profile.first_use == hooked.first_use
    assert profile.production == hooked.production
    assert profile.fingerprint == hooked.fingerprint
    assert profile.nbytes == sum(p.numel() * p.element_size() for p in model.parameters())
    assert 0 < profile.compute_time < 10


def test_fused_lstm_is_traced_with_hooks_and_says_so() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(9, 8), "lstm": nn.LSTM(8, 8, batch_first=True)})
    model.forward = lambda tokens: model["lstm"](model["words"](tokens))[0].sum()  # type: ignore[method-assign]
    report = record(model, torch.arange(18).reshape(2, 9) % 9, runs=1)
    assert report.method == "hooks"
    assert any("taken apart" in note for note in report.notes)
    assert ranked(report.profile.first_use)[0] == "words.weight"
    assert all(any(p.name in op.reads for op in report.profile.ops) for p in report.profile.params)


class DataDependent(nn.Module):
    """Which layer runs is decided by values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        chosen = self.left if h.sum().item() * 0 == 0 else self.right
        return (chosen(h) * self.scale).sum()


def test_data_dependent_model_is_traced_with_hooks_and_says_so() -> None:
    report = record(DataDependent(), torch.randn(2, 4), runs=1)
    assert report.method == "hooks"
    assert "no static graph" in report.notes[0]
    assert any("2 parameters get no gradient" in note and "right.weight" in note for note in report.notes)
    assert ranked(report.profile.first_use)[:5] == ["first.weight", "first.bias", "left.weight", "left.bias", "scale"]
    assert report.profile.production["scale"] == 0


def test_hooks_see_functional_uses() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    profile = record(model, (x, x, x), lambda out: out[0].sum(), runs=1, export=False).profile
    assert "out_proj.weight" in {name for op in profile.ops for name in op.reads}


def test_tied_weights_are_one_parameter_completed_after_both_uses() -> None:
    model, make_batch = real_model("gpt2")
    inputs, target = make_batch(0)
    profile = trace(model, inputs, lambda out: loss(out, target), runs=1)
    assert "head.weight" not in profile.param_index
    assert ranked(profile.production)[-1] == "wte.weight"
    reads = [op.name for op in profile.ops if "wte.weight" in op.reads]
    assert len(reads) == 2
    maker = next(op for op in profile.ops if op.produces == "wte.weight")
    assert len(maker.inputs) == 2


def test_frozen_parameters_do_not_travel() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    profile = trace(model, torch.randn(2, 4), torch.sum, runs=1)
    assert set(profile.param_index) == {"1.weight", "1.bias"}


@pytest.mark.parametrize("export", [True, False])
def test_tracing_leaves_no_mark(export: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[0].weight.grad = torch.full((4, 4), 7.0)
    before = {n: b.clone() for n, b in model.named_buffers()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    record(model, torch.randn(2, 4, generator=torch.Generator()), torch.sum, runs=1, export=export)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(model[0].weight.grad, torch.full((4, 4), 7.0))
    assert model[0].bias.grad is None
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks


def test_clock_is_read_only_when_the_device_has_settled() -> None:
    step = Step.of(nn.Linear(2, 1), torch.randn(2, 2), torch.sum)
    waited: list[None] = []
    step = replace(step, settle=lambda: waited.append(None))
    joint = Joint(step)
    joint.replay(keep=True)
    assert len(waited) >= len(joint.ops())
    waited.clear()
    Hooked(step).run(keep=True)
    assert len(waited) >= 5


def test_sum_of_op_times_is_near_the_measured_step() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    report = record(model, torch.randn(256, 256), torch.sum, runs=15)
    assert report.method == "export"
    assert report.error == pytest.approx(report.profile.compute_time / report.profile.measured_time - 1)
    assert abs(report.error) < 0.15 * report.spread  # a busy machine is allowed what it does to whole steps


def test_calibrated_sum_is_the_measured_step() -> None:
    profile = calibrated(Profile((Op("a", 1.0), Op("b", 3.0, ("a",))), (), measured_time=2.0))
    assert [op.time for op in profile.ops] == [0.5, 1.5]


def test_loss_that_closes_over_targets_or_is_a_module() -> None:
    model = nn.Linear(4, 3)
    target = torch.tensor([0, 2])
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
    report = record(model, torch.randn(2, 4), lambda out: criterion(out, target), runs=1)
    assert report.method == "export"
    assert set(report.profile.param_index) == {"weight", "bias"}


@pytest.mark.parametrize(
    ("model", "inputs", "criterion", "words"),
    [
        (nn.Linear(4, 3), torch.randn(2, 5), torch.sum, "fails on its example inputs"),
        (nn.Linear(4, 3), torch.randn(2, 4), None, r"the loss is \(2, 3\), not one number"),
        (nn.Identity(), torch.randn(1), None, "does not depend on any parameter"),
        ("model", torch.randn(1), None, "the model is a str"),
    ],
)
def test_bad_models_are_named(model: nn.Module, inputs: Tensor, criterion: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        record(model, inputs, criterion, runs=1)  # type: ignore[arg-type]


def test_cli_traces_the_documented_factory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    target = tmp_path / "profile.json"
    assert run(["trace", "examples/trace_me.py:make", "-o", str(target), "--runs", "1", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "export"
    assert codec.load(Profile, target).compute_time == pytest.approx(found["summed_s"])


def test_cli_writes_published_profiles_without_tracing(tmp_path: Path) -> None:
    target = tmp_path / "vgg19.json"
    assert run(["trace", "--model", "vgg19", "--compute", "500ms", "--scale", "0.0625", "-o", str(target)]) == 0
    assert codec.load(Profile, target).compute_time == pytest.approx(0.5)


@pytest.mark.parametrize("arguments", [[], ["a:b", "--model", "vgg19"], ["--model", "vgg20"], ["nowhere.py:make"]])
def test_cli_mistakes_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", *arguments]) == 2
    assert capsys.readouterr().err.startswith("dovetail: ")
