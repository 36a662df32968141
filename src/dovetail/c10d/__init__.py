"""dovetail as a backend of torch.distributed: `init_process_group("dovetail")`; importing this registers it."""

from __future__ import annotations

from dovetail.c10d.register import register

register()

__all__ = ["register"]
