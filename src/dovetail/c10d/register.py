"""Telling torch that the backend exists; what runs it is imported when a group is made."""

from __future__ import annotations

from typing import Any

NAME = "dovetail"
DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Make `init_process_group("dovetail")` known; torch itself calls this at its import, through our entry point."""
    import torch.distributed as dist

    if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _make_group, extended_api=True, devices=DEVICES)


def _make_group(options: Any, backend_options: Any) -> Any:
    from dovetail.c10d.backend import make_group

    return make_group(options, backend_options)
