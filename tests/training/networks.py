"""Small models, data and loops that the training tests share; the same loop runs under DDP and under dovetail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dovetail import training
from dovetail.training import no_sync, shutdown
from dovetail.training.distribute import _running
from dovetail.training.job import Job

torch.set_num_threads(1)


class Cnn(nn.Module):
    """Convolutions with batch norm, whose buffers must follow rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Transformer(nn.Module):
    """An encoder whose output shares the embedding's weight, and which reads out_proj functionally."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.encoder(self.embed(x))).flatten(0, 1)


class Lstm(nn.Module):
    """A recurrent net: weights are used many times in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0][:, -1])


class Mlp(nn.Module):
    """Three layers, the middle one large enough to be on its way for a while."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"cnn": Cnn, "transformer": Transformer, "lstm": Lstm, "mlp": Mlp}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True),
    "plain": lambda ps: torch.optim.SGD(ps, lr=0.05),
    "adam": lambda ps: torch.optim.Adam(ps, lr=1e-2, weight_decay=1e-3),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.05),
}


def batch(network: str, rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's data of a step; every rank has its own."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    if network == "cnn":
        return torch.randn(4, 3, 6, 6, generator=source), torch.randint(5, (4,), generator=source)
    if network == "mlp":
        return torch.randn(6, 8, generator=source), torch.randint(3, (6,), generator=source)
    x = torch.randint(20, (3, 7), generator=source)
    return (x, x.flatten()) if network == "transformer" else (x, torch.randint(5, (3,), generator=source))


@dataclass
class Side:
    """What a loop works with: `call` runs the model, `model` is the bare module."""

    call: Callable[..., torch.Tensor]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    no_sync: Callable[[], contextlib.AbstractContextManager[None]]
    network: str = "mlp"
    dovetail: bool = True

    def loss(self, step: int) -> torch.Tensor:
        x, y = batch(self.network, dist.get_rank(), step)
        return nn.functional.cross_entropy(self.call(x), y)

    def step(self, step: int) -> float:
        """One ordinary iteration."""
        self.optimizer.zero_grad()
        loss = self.loss(step)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def build(network: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return NETWORKS[network]()


def ddp(network: str, make: Callable[[nn.Module], torch.optim.Optimizer], **options: Any) -> Side:
    """The reference: PyTorch's own data parallel training."""
    model = build(network, 0)
    optimizer = make(model)
    wrapped = DistributedDataParallel(model, **options)
    return Side(wrapped, model, optimizer, wrapped.no_sync, network, dovetail=False)


_over: list[str] = []  # engines that `distribute` takes instead of its default; the last one counts


@contextlib.contextmanager
def over_process_group() -> Iterator[None]:
    """Inside, ours runs on torch's own collectives, and `both` leaves out what these cannot do."""
    _over.append("c10d")
    try:
        yield
    finally:
        _over.pop()


def possible(place: str) -> bool:
    """Whether the optimizer can run there; a process group has no aggregator."""
    return not (_over and place in ("aggregator", "hub"))


def distribute(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> torch.optim.Optimizer:
    """As a user calls it, on the engine in question."""
    if _over:
        options = {**options, "engine": _over[-1]}
        options.pop("rate", None)  # it only makes results come late
    return training.distribute(model, optimizer, **options)


def dovetailed(network: str, make: Callable[[nn.Module], torch.optim.Optimizer], **options: Any) -> Side:
    """Ours; the weights of other ranks than 0 start out different and must be overwritten."""
    model = build(network, dist.get_rank())
    optimizer = make(model)
    assert distribute(model, optimizer, **options) is optimizer
    return Side(model, model, optimizer, lambda: no_sync(model), network)


def both(
    loop: Callable[[Side], Any],
    make: Callable[[nn.Module], torch.optim.Optimizer],
    *,
    network: str = "mlp",
    unused: bool = False,
    **options: Any,
) -> None:
    """Assert that the loop returns the same and leaves the same weights and optimizer state under DDP and dovetail."""
    if not possible(options.get("update", "auto")):
        return
    reference = ddp(network, make, find_unused_parameters=unused)
    wanted = loop(reference)
    ours = dovetailed(network, make, **options)
    try:
        found = loop(ours)
        assert wanted == found, f"{options}: {wanted} under DDP, {found} under dovetail"
        same(reference.model.state_dict(), ours.model.state_dict())
        same_state(reference.optimizer, ours.optimizer)
    finally:
        shutdown(ours.model)


def same(wanted: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    """Equal to the bit."""
    assert wanted.keys() == found.keys()
    for name in wanted:
        assert torch.equal(wanted[name], found[name]), (
            f"{name} differs by {(wanted[name] - found[name]).abs().max().item()}"
        )


def same_state(wanted: torch.optim.Optimizer, found: torch.optim.Optimizer) -> None:
    """Equal optimizer state, in torch's own form."""
    one, two = wanted.state_dict(), found.state_dict()
    assert one["param_groups"] == two["param_groups"]
    assert one["state"].keys() == two["state"].keys()
    for index, values in one["state"].items():
        assert values.keys() == two["state"][index].keys(), (values.keys(), two["state"][index].keys())
        for key, value in values.items():
            other = two["state"][index][key]
            for mine, theirs in zip(_flat(value), _flat(other), strict=True):
                assert torch.equal(mine, theirs), f"state {key} of {index} differs"


def _flat(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, list) else [value]
    return [v if isinstance(v, torch.Tensor) else torch.tensor(-1.0 if v is None else float(v)) for v in values]


def jobs(model: nn.Module) -> list[Job]:
    """What `distribute` made of the model, one an optimizer."""
    return [running.job for running in _running[model]]


def in_flight(side: Side) -> int:
    """How many updates have not been applied yet."""
    return len(jobs(side.model)[0]._due)


def scenarios(names: dict[str, Any]) -> list[Callable[[], None]]:
    """A module's own public functions, in their order."""
    return [
        value
        for value in list(names.values())
        if callable(value)
        and getattr(value, "__module__", "") == names["__name__"]
        and not value.__name__.startswith("_")
    ]


def run_all(functions: list[Callable[[], None]]) -> dict[str, str]:
    """Run scenarios one after another; what each failed with, or an empty string."""
    import traceback

    outcome: dict[str, str] = {}
    for function in functions:
        try:
            function()
            outcome[function.__name__] = ""
        except BaseException:
            outcome[function.__name__] = traceback.format_exc()
    return outcome
