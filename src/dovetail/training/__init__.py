"""Training in PyTorch: hooks on model and optimizer around the engine."""

from dovetail.training.distribute import distribute, gather_timeline, no_sync, shutdown, timeline

__all__ = ["distribute", "gather_timeline", "no_sync", "shutdown", "timeline"]
