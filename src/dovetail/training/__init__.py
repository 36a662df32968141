"""Training in PyTorch: hooks on model and optimizer around the engine."""

from dovetail.training import collective
from dovetail.training.distribute import distribute, gather_timeline, no_sync, shutdown, stats, timeline
from dovetail.training.reorder import reorder

__all__ = ["collective", "distribute", "gather_timeline", "no_sync", "reorder", "shutdown", "stats", "timeline"]
