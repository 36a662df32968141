"""Published networks as layers in forward order: parameter counts and FLOPs from each layer's geometry; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.errors import BadInput
from dovetail.trace.graph import Op, Param, Profile

if TYPE_CHECKING:
    from torch import nn

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: weights, biases and normalisation together; `flops` are multiply-adds of one sample's forward pass."""

    name: str
    params: int
    flops: float

    def elements(self, scale: float = 1.0) -> int:
        """Length of the flat parameter that stands for this layer at `scale`; 0 only where the layer has none."""
        return max(1, round(self.params * scale)) if self.params else 0


Layers = Iterator[Layer]


def names() -> tuple[str, ...]:
    """The published networks `published` knows."""
    return tuple(_MODELS)


def published(name: str) -> tuple[Layer, ...]:
    """The layers of a published network in forward order."""
    if name not in _MODELS:
        raise BadInput(f"model {name!r} is not known; choose one of {', '.join(_MODELS)}")
    return tuple(_MODELS[name]())


def profile_of(name: str, *, compute: float, scale: float = 1.0, forward_share: float = 1 / 3) -> Profile:
    """A chain of one forward and one backward op per layer that takes `compute` seconds in proportion to FLOPs."""
    if not compute >= 0:
        raise BadInput(f"compute is {compute!r} s; it must be 0 or more")
    if not scale > 0:
        raise BadInput(f"scale is {scale!r}; it must be above 0")
    if not 0 <= forward_share <= 1:
        raise BadInput(f"forward_share is {forward_share!r}; it must be between 0 and 1")
    layers = published(name)
    second = compute / sum(layer.flops for layer in layers)
    forward: list[Op] = []
    for layer in layers:
        before = (forward[-1].name,) if forward else ()
        reads = (layer.name,) if layer.params else ()
        forward.append(Op(f"{layer.name}/forward", layer.flops * second * forward_share, before, reads))
    ops = list(forward)
    for layer in reversed(layers):
        time = layer.flops * second * (1 - forward_share)
        ops.append(Op(f"{layer.name}/backward", time, (ops[-1].name,), (), layer.name if layer.params else None))
    params = tuple(Param(la.name, la.elements(scale) * FLOAT_BYTES) for la in layers if la.params)
    return Profile(tuple(ops), params, name=name)


def real_model(name: str) -> tuple[nn.Module, Callable[[int], tuple[tuple[Any, ...], Any]]]:
    """A real small network of the family, and `make_batch(seed) -> (inputs, target)`; its loss is `families.loss`."""
    from dovetail.bench import families

    if name not in _MODELS:
        raise BadInput(f"model {name!r} is not known; choose one of {', '.join(_MODELS)}")
    return families.build(name)


def _conv(
    name: str, inputs: int, outputs: int, kernel: tuple[int, int] | int, size: int, *, norm: bool = False
) -> Layer:
    """A convolution onto a `size` x `size` map, with a bias, or with batch norm (scale and shift) in its place."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    weights = inputs * outputs * height * width
    return Layer(name, weights + outputs * (2 if norm else 1), float(weights * size * size))


def _dense(name: str, inputs: int, outputs: int, *, rows: int = 1, bias: bool = True) -> Layer:
    return Layer(name, inputs * outputs + (outputs if bias else 0), float(inputs * outputs * rows))


def _vgg(depths: tuple[int, ...]) -> Layers:
    channels, size = 3, 224
    for block, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512, 512), strict=True), start=1):
        for i in range(1, depth + 1):
            yield _conv(f"conv{block}_{i}", channels, width, 3, size)
            channels = width
        size //= 2
    yield _dense("fc6", channels * size * size, 4096)
    yield _dense("fc7", 4096, 4096)
    yield _dense("fc8", 4096, 1000)


def _alexnet() -> Layers:
    """The one-tower AlexNet that torchvision publishes."""
    yield _conv("conv1", 3, 64, 11, 55)
    yield _conv("conv2", 64, 192, 5, 27)
    yield _conv("conv3", 192, 384, 3, 13)
    yield _conv("conv4", 384, 256, 3, 13)
    yield _conv("conv5", 256, 256, 3, 13)
    yield _dense("fc6", 256 * 6 * 6, 4096)
    yield _dense("fc7", 4096, 4096)
    yield _dense("fc8", 4096, 1000)


def _resnet(depths: tuple[int, ...]) -> Layers:
    """Bottleneck ResNet v1, the stride in the 3 x 3 convolution."""
    yield _conv("conv1", 3, 64, 7, 112, norm=True)
    channels, size = 64, 56
    for stage, depth in enumerate(depths, start=1):
        width = 64 * 2 ** (stage - 1)
        for block in range(depth):
            name = f"stage{stage}.{block}"
            yield _conv(f"{name}.conv1", channels, width, 1, size, norm=True)
            if stage > 1 and block == 0:
                size //= 2
            yield _conv(f"{name}.conv2", width, width, 3, size, norm=True)
            yield _conv(f"{name}.conv3", width, width * 4, 1, size, norm=True)
            if block == 0:
                yield _conv(f"{name}.shortcut", channels, width * 4, 1, size, norm=True)
            channels = width * 4
    yield _dense("fc", channels, 1000)


def _branch(name: str, inputs: int, size: int, *convs: tuple[int, tuple[int, int] | int]) -> Layers:
    """Convolutions one after another on maps of one size: (output channels, kernel) each."""
    for i, (outputs, kernel) in enumerate(convs, start=1):
        yield _conv(f"{name}_{i}", inputs, outputs, kernel, size, norm=True)
        inputs = outputs


def _inception_v1() -> Layers:
    """GoogLeNet with batch norm and 3 x 3 in place of 5 x 5, without the auxiliary heads."""
    yield _conv("conv1", 3, 64, 7, 112, norm=True)
    yield _conv("conv2", 64, 64, 1, 56, norm=True)
    yield _conv("conv3", 64, 192, 3, 56, norm=True)
    channels = 192
    modules = (
        ("3a", 28, 64, 96, 128, 16, 32, 32),
        ("3b", 28, 128, 128, 192, 32, 96, 64),
        ("4a", 14, 192, 96, 208, 16, 48, 64),
        ("4b", 14, 160, 112, 224, 24, 64, 64),
        ("4c", 14, 128, 128, 256, 24, 64, 64),
        ("4d", 14, 112, 144, 288, 32, 64, 64),
        ("4e", 14, 256, 160, 320, 32, 128, 128),
        ("5a", 7, 256, 160, 320, 32, 128, 128),
        ("5b", 7, 384, 192, 384, 48, 128, 128),
    )
    for name, size, one, reduce3, three, reduce5, five, pool in modules:
        yield from _branch(f"{name}.a", channels, size, (one, 1))
        yield from _branch(f"{name}.b", channels, size, (reduce3, 1), (three, 3))
        yield from _branch(f"{name}.c", channels, size, (reduce5, 1), (five, 3))
        yield from _branch(f"{name}.pool", channels, size, (pool, 1))
        channels = one + three + five + pool
    yield _dense("fc", channels, 1000)


def _inception_v3() -> Layers:
    """Inception v3 on 299 x 299, without the auxiliary head."""
    stem = (("conv1", 3, 32, 3, 149), ("conv2", 32, 32, 3, 147), ("conv3", 32, 64, 3, 147))
    for name, inputs, outputs, kernel, size in (*stem, ("conv4", 64, 80, 1, 73), ("conv5", 80, 192, 3, 71)):
        yield _conv(name, inputs, outputs, kernel, size, norm=True)
    channels = 192
    for name, pool in (("5b", 32), ("5c", 64), ("5d", 64)):
        yield from _branch(f"{name}.a", channels, 35, (64, 1))
        yield from _branch(f"{name}.b", channels, 35, (48, 1), (64, 5))
        yield from _branch(f"{name}.c", channels, 35, (64, 1), (96, 3), (96, 3))
        yield from _branch(f"{name}.pool", channels, 35, (pool, 1))
        channels = 64 + 64 + 96 + pool
    yield _conv("6a.a_1", channels, 384, 3, 17, norm=True)
    yield from _branch("6a.b", channels, 35, (64, 1), (96, 3))
    yield _conv("6a.b_3", 96, 96, 3, 17, norm=True)
    channels += 384 + 96
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        wide, tall = (width, (1, 7)), (width, (7, 1))
        yield from _branch(f"{name}.a", channels, 17, (192, 1))
        yield from _branch(f"{name}.b", channels, 17, (width, 1), wide, (192, (7, 1)))
        yield from _branch(f"{name}.c", channels, 17, (width, 1), tall, wide, tall, (192, (1, 7)))
        yield from _branch(f"{name}.pool", channels, 17, (192, 1))
    yield from _branch("7a.a", channels, 17, (192, 1))
    yield _conv("7a.a_2", 192, 320, 3, 8, norm=True)
    yield from _branch("7a.b", channels, 17, (192, 1), (192, (1, 7)), (192, (7, 1)))
    yield _conv("7a.b_4", 192, 192, 3, 8, norm=True)
    channels += 320 + 192
    for name in ("7b", "7c"):
        yield from _branch(f"{name}.a", channels, 8, (320, 1))
        yield from _branch(f"{name}.b", channels, 8, (384, 1))
        yield from _branch(f"{name}.b.wide", 384, 8, (384, (1, 3)))
        yield from _branch(f"{name}.b.tall", 384, 8, (384, (3, 1)))
        yield from _branch(f"{name}.c", channels, 8, (448, 1), (384, 3))
        yield from _branch(f"{name}.c.wide", 384, 8, (384, (1, 3)))
        yield from _branch(f"{name}.c.tall", 384, 8, (384, (3, 1)))
        yield from _branch(f"{name}.pool", channels, 8, (192, 1))
        channels = 320 + 4 * 384 + 192
    yield _dense("fc", channels, 1000)


def _gpt2(*, width: int = 768, blocks: int = 12, vocabulary: int = 50257, length: int = 1024) -> Layers:
    """GPT-2 124M on a full context; the head is tied to the token embedding, so it computes and holds nothing."""
    yield Layer("wte", vocabulary * width, 0.0)
    yield Layer("wpe", length * width, float(length * width))
    for i in range(blocks):
        yield Layer(f"h{i}.ln_1", 2 * width, float(2 * length * width))
        yield _dense(f"h{i}.attn.qkv", width, 3 * width, rows=length)
        project = _dense(f"h{i}.attn.proj", width, width, rows=length)
        # Scores and their weighted sum have no parameter of their own; they run just before the projection.
        yield Layer(project.name, project.params, project.flops + 2 * length * length * width)
        yield Layer(f"h{i}.ln_2", 2 * width, float(2 * length * width))
        yield _dense(f"h{i}.mlp.fc", width, 4 * width, rows=length)
        yield _dense(f"h{i}.mlp.proj", 4 * width, width, rows=length)
    yield Layer("ln_f", 2 * width, float(2 * length * width))
    yield Layer("head", 0, float(length * width * vocabulary))


def _seq2seq(*, width: int = 512, source: int = 17191, target: int = 7709, length: int = 25) -> Layers:
    """An LSTM encoder and decoder with attention as P3's Sockeye on IWSLT15 (its vocabularies): the embedding leads."""

    def lstm(name: str, inputs: int, hidden: int, directions: int = 1) -> Layer:
        weights = 4 * hidden * (inputs + hidden) * directions
        return Layer(name, weights + 2 * 4 * hidden * directions, float(weights * length))

    yield Layer("source_embedding", source * width, 0.0)
    yield lstm("encoder.0", width, width // 2, directions=2)
    yield lstm("encoder.1", width, width)
    yield Layer("target_embedding", target * width, 0.0)
    yield lstm("decoder.0", 2 * width, width)  # the last context is fed back beside the word
    yield lstm("decoder.1", width, width)
    score = _dense("attention", width, width, rows=length, bias=False)
    yield Layer(score.name, score.params, score.flops + 2 * length * length * width)
    yield _dense("combine", 2 * width, width, rows=length)
    yield _dense("output", width, target, rows=length)


_MODELS: dict[str, Callable[[], Layers]] = {
    "vgg19": lambda: _vgg((2, 2, 4, 4, 4)),
    "vgg16": lambda: _vgg((2, 2, 3, 3, 3)),
    "alexnet": _alexnet,
    "resnet50": lambda: _resnet((3, 4, 6, 3)),
    "resnet101": lambda: _resnet((3, 4, 23, 3)),
    "resnet152": lambda: _resnet((3, 8, 36, 3)),
    "inception_v1": _inception_v1,
    "inception_v3": _inception_v3,
    "gpt2": _gpt2,
    "seq2seq": _seq2seq,
}
