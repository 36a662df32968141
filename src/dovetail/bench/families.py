"""Real small networks, one per family of the published ones, for benches that compute for real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[tuple[Tensor, ...], Tensor]
MakeBatch = Callable[[int], Batch]
CLASSES, VOCABULARY, LENGTH = 10, 512, 24


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over the last dimension, for images and sequences alike."""
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def build(name: str) -> tuple[nn.Module, MakeBatch]:
    """The small network of the family of `name`, initialised from a fixed seed, and its batches."""
    family = next(family for prefix, family in _FAMILIES.items() if name.startswith(prefix))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return family()


def _images(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(8, 3, 32, 32, generator=generator)
    return (images,), torch.randint(CLASSES, (8,), generator=generator)


def _tokens(seed: int) -> Batch:
    tokens = torch.randint(VOCABULARY, (8, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    return (tokens[:, :-1],), tokens[:, 1:]


def _sentences(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(16 * VOCABULARY, (8, LENGTH), generator=generator)
    target = torch.randint(VOCABULARY, (8, LENGTH + 1), generator=generator)
    return (source, target[:, :-1]), target[:, 1:]


def _conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


def _plain(widths: tuple[int, ...], dense: int) -> nn.Module:
    """Convolutions, then dense layers that hold most of the parameters (VGG, AlexNet)."""
    layers: list[nn.Module] = []
    channels, size = 3, 32
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels, size = width, size // 2
    layers += [nn.Flatten(), nn.Linear(channels * size * size, dense), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(dense, dense), nn.ReLU(), nn.Linear(dense, CLASSES))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(inputs, width, 1),
            _conv(width, width, 3, stride=stride),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class _Inception(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.one = _conv(inputs, width, 1)
        self.three = nn.Sequential(_conv(inputs, width, 1), _conv(width, width, 3))
        self.five = nn.Sequential(_conv(inputs, width, 1), _conv(width, width, 3), _conv(width, width, 3))
        self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inputs, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


def _classifier(*body: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def _resnet() -> nn.Module:
    blocks = (_Bottleneck(16, 16, 1), _Bottleneck(64, 16, 1), _Bottleneck(64, 32, 2), _Bottleneck(128, 32, 1))
    return _classifier(_conv(3, 16, 3), *blocks, channels=128)


def _inception() -> nn.Module:
    stem = _conv(3, 16, 3, stride=2)
    return _classifier(stem, _Inception(16, 16), _Inception(64, 24), nn.MaxPool2d(2), _Inception(96, 32), channels=128)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.ln_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        mixed: Tensor = x + self.mlp(self.ln_2(x))
        return mixed


class _Transformer(nn.Module):
    """A GPT in small: the head's weight is the token embedding's."""

    def __init__(self, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(_Block(width, heads=4) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))  # type: ignore[no-any-return]


class _Seq2Seq(nn.Module):
    """An LSTM pair with attention whose source embedding, read first, is the heaviest tensor."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(16 * VOCABULARY, width), nn.Embedding(VOCABULARY, width)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.score = nn.Linear(width, width, bias=False)
        self.combine, self.output = nn.Linear(2 * width, width), nn.Linear(width, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.source(source))
        words, _ = self.decoder(self.target(target), state)
        weights = torch.softmax(self.score(words) @ memory.transpose(1, 2), dim=-1)
        joined = torch.cat([weights @ memory, words], dim=-1)
        return self.output(torch.tanh(self.combine(joined)))  # type: ignore[no-any-return]


_FAMILIES: dict[str, Callable[[], tuple[Any, MakeBatch]]] = {
    "vgg": lambda: (_plain((16, 32, 64), dense=256), _images),
    "alexnet": lambda: (_plain((32, 64), dense=256), _images),
    "resnet": lambda: (_resnet(), _images),
    "inception": lambda: (_inception(), _images),
    "gpt": lambda: (_Transformer(), _tokens),
    "seq2seq": lambda: (_Seq2Seq(), _sentences),
}
