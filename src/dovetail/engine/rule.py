"""The update that runs where sums are complete: the mean alone, or one of torch's optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dovetail.errors import BadInput

KINDS = ("mean", "sgd", "adam", "adamw")  # position = native code
_NESTEROV, _MAXIMIZE = 1, 2


class Typed(Protocol):
    """A tensor as far as a rule cares."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which formula, and its switches; numbers that may change from step to step are in Hyper."""

    kind: str = "mean"
    nesterov: bool = False
    maximize: bool = False
    amsgrad: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"update rule {self.kind!r} is unknown; it is one of {', '.join(KINDS)}")
        if self.amsgrad:
            raise BadInput("amsgrad does not run at the aggregator; use update='worker' or amsgrad=False")
        if self.nesterov and self.kind != "sgd":
            raise BadInput(f"nesterov momentum belongs to sgd, not to {self.kind}")

    @property
    def updates(self) -> bool:
        """Whether the aggregator holds the parameters and changes them."""
        return self.kind != "mean"

    def check_types(self, tensors: Iterable[Typed]) -> None:
        """Raise if the aggregator would have to update values of a type it has no formula for."""
        wrong = next((t for t in tensors if self.updates and t.dtype not in ("f32", "f64")), None)
        if wrong is not None:
            raise BadInput(
                f"tensor {wrong.name!r} is {wrong.dtype}, and the aggregator updates f32 and f64; use update='worker'"
            )

    @property
    def code(self) -> int:
        return KINDS.index(self.kind)

    @property
    def flags(self) -> int:
        return self.nesterov * _NESTEROV + self.maximize * _MAXIMIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """The numbers of one parameter group for one iteration."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @property
    def values(self) -> list[float]:
        """In the order of the native call."""
        return [self.lr, self.momentum, self.dampening, self.weight_decay, self.beta1, self.beta2, self.eps]
