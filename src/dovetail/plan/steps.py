"""What one node does with one chunk, as a list of steps: the only language the engine speaks."""

from __future__ import annotations

from dataclasses import dataclass

FETCH = "fetch"  # the local gradient joins the sum
ADD = "add"  # a partial sum from each of `peers` joins the sum
SEND = "send"  # what we have goes to each of `peers`: the partial sum before COPY/FINISH, the result after it
COPY = "copy"  # the result comes from the one peer
FINISH = "finish"  # the sum is complete: take the mean, or run the optimizer here
GATE = "gate"  # go on only when this node's backward pass is over (split all-reduce: the second half)
DELIVER = "deliver"  # the result is written to the caller's buffer
ASK = "ask"  # request the result from the one peer, when the pull's window is open
OFFER = "offer"  # the result goes to each of `peers` when it asks
OPS = (FETCH, ADD, SEND, COPY, FINISH, GATE, DELIVER, ASK, OFFER)


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `peers` are node numbers (workers first, then dedicated hubs)."""

    op: str
    peers: tuple[int, ...] = ()


Program = tuple[Step, ...]
Route = dict[int, Program]  # node -> what it does with a chunk of this route
