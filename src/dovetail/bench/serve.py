"""The worker's end of a bench: orders come in as JSON lines, replies go out; both ranks and conductor are ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

P = TypeVar("P")
O = TypeVar("O")  # noqa: E741


def serve(
    post: type[P],
    order: type[O],
    start: Callable[[P], tuple[Any, Callable[[O], Any]]],
    *,
    backend: Callable[[P], str] = lambda _: "gloo",
) -> None:
    """Join the job, `start` with the post given on the command line, tell its first words, and obey until the end."""
    given = msgspec.json.decode(sys.argv[1], type=post)
    # Anything that a library prints must not be taken for a reply.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    dist.init_process_group(backend(given), timeout=timedelta(seconds=120))
    words, obey = start(given)
    while True:
        replies.write(msgspec.json.encode(words) + b"\n")
        replies.flush()
        line = sys.stdin.buffer.readline()
        if not line:
            break
        words = obey(msgspec.json.decode(line, type=order))
    # Not a plain exit: threads of torch and of the engine may still be at work, and nothing is left to say.
    os._exit(0)
