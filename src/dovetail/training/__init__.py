"""Training in PyTorch: hooks on model and optimizer around the engine."""

from dovetail.training import collective
from dovetail.training.distribute import (
    clip_grad_norm_,
    distribute,
    gather_timeline,
    join,
    no_sync,
    shutdown,
    stats,
    timeline,
)
from dovetail.training.reorder import reorder

__all__ = [
    "clip_grad_norm_", "collective", "distribute", "gather_timeline", "join", "no_sync", "reorder", "shutdown", "stats",
    "timeline",
]  # fmt: skip
