"""Published networks: their totals are the published totals."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dovetail.bench.models import names, profile_of, published
from dovetail.errors import BadInput

TOTALS = {
    "vgg19": 143_667_240,
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "inception_v1": 6_624_904,
    "inception_v3": 23_834_568,
    "gpt2": 124_439_808,
}
GIGAFLOPS = {
    "vgg19": 19.63,
    "vgg16": 15.47,
    "alexnet": 0.714,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
    "inception_v1": 1.498,
    "inception_v3": 5.713,
}


@pytest.mark.parametrize("name", TOTALS)
def test_parameters_add_up_to_the_published_total(name: str) -> None:
    assert sum(layer.params for layer in published(name)) == TOTALS[name]


@pytest.mark.parametrize("name", GIGAFLOPS)
def test_flops_add_up_to_the_published_total(name: str) -> None:
    assert sum(layer.flops for layer in published(name)) / 1e9 == pytest.approx(GIGAFLOPS[name], rel=2e-3)


def test_vgg19_first_dense_layer_holds_71_5_percent() -> None:
    layers = {layer.name: layer for layer in published("vgg19")}
    assert layers["fc6"].params / TOTALS["vgg19"] == pytest.approx(0.715, abs=5e-4)


def test_seq2seq_is_led_by_its_heaviest_layer() -> None:
    layers = published("seq2seq")
    assert max(layers, key=lambda layer: layer.params) is layers[0]


def test_gpt2_head_computes_but_holds_nothing() -> None:
    head = published("gpt2")[-1]
    assert (head.params, head.elements(0.5)) == (0, 0)
    assert head.flops > 0


@pytest.mark.parametrize("name", names())
def test_profile_takes_the_given_time_one_third_forward(name: str) -> None:
    layers = published(name)
    profile = profile_of(name, compute=1.5, scale=0.0625)
    assert profile.compute_time == pytest.approx(1.5)
    assert sum(op.time for op in profile.ops[: len(layers)]) == pytest.approx(0.5)
    held = [layer.name for layer in layers if layer.params]
    assert sorted(profile.first_use, key=profile.first_use.__getitem__) == held
    assert sorted(profile.production, key=profile.production.__getitem__) == held[::-1]
    assert profile.nbytes == pytest.approx(sum(layer.params for layer in layers) * 0.0625 * 4, rel=1e-3)


def test_zero_compute_keeps_the_bytes() -> None:
    profile = profile_of("vgg19", compute=0.0)
    assert profile.compute_time == 0
    assert profile.nbytes == 4 * TOTALS["vgg19"]


def test_importing_the_models_leaves_torch_out() -> None:
    code = "import sys, dovetail.bench.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: published("vgg20"), "'vgg20' is not known"),
        (lambda: profile_of("vgg19", compute=-1.0), "compute is -1.0"),
        (lambda: profile_of("vgg19", compute=1.0, scale=0.0), "scale is 0.0"),
        (lambda: profile_of("vgg19", compute=1.0, forward_share=2.0), "forward_share is 2.0"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()  # type: ignore[operator]
