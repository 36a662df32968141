"""One rank of `bench train`: the training loop that any script would have, and what it saw."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dovetail.bench import families
from dovetail.bench.emulate import Emulated
from dovetail.bench.models import published, real_model
from dovetail.bench.orders import Order, Post, Ready, Reply, Workload
from dovetail.bench.serve import serve
from dovetail.bench.systems import ALONE, SYSTEMS, Means
from dovetail.timeline import COMPUTE, UPDATE, WAIT, Span

Batch = Callable[[int], tuple[tuple[Any, ...], Any]]  # seed -> inputs, target
LEAST_WAIT = 1e-4  # seconds; a shorter pause at the end of the backward pass is the loop's own


class Trainee:
    """A model under one variant of a system."""

    def __init__(self, post: Post, order: Order) -> None:
        self._model, self._batch = build(order.workload, dist.get_rank())
        self._emulated = self._model if isinstance(self._model, Emulated) else None
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.001, momentum=0.9)
        self._called = self._model
        system = SYSTEMS[post.system]
        if order.variant != ALONE:
            means = Means(
                variant=order.variant,
                hubs=post.hubs,
                groups=post.groups,
                facing=os.environ["MASTER_ADDR"],
                rate=post.rate,
                trace=order.trace,
            )
            self._called = system.attach(self._model, self._optimizer, means)
        self._own_spans = system.spans if order.trace else None
        self._spans: list[Span] = []
        self._done = 0  # iterations in all

    def run(self, order: Order) -> Reply:
        """Iterations that count begin when `warmup` others are over, and end when the next one begins."""
        boundaries: list[float] = []
        self._spans.clear()
        dist.barrier()
        for i in range(-order.warmup, order.iterations + 1):
            if i >= 0:
                boundaries.append(time.monotonic())
            self._iterate(i)
        self._model.state_dict()  # complete when it returns, whatever the system still had under way
        nbytes = sum(p.numel() * p.element_size() for p in self._model.parameters())
        weights = sum(float(p.detach().double().sum()) for p in self._model.parameters())
        dist.barrier()
        spans = [s for s in self._spans if self._own_spans is None or s.lane == COMPUTE]
        if self._own_spans is not None:
            spans += [s for s in self._own_spans(self._called) if s.lane != COMPUTE]
        first, last = boundaries[0], boundaries[-1]
        counted = tuple(s for s in spans if first <= s.start < last)
        return Reply(boundaries=tuple(boundaries), spans=counted, nbytes=nbytes, weights=weights)

    def _iterate(self, number: int) -> None:
        if self._emulated is not None:
            self._emulated.iteration = self._done
            self._emulated.record = lambda name, start, end: self._note(COMPUTE, name, start, end, number)
        inputs, target = self._batch(self._done * dist.get_world_size() + dist.get_rank())
        self._done += 1
        began = time.monotonic()
        self._optimizer.zero_grad()
        output = self._called(*inputs)
        loss = output.sum() if self._emulated is not None else families.loss(output, target)
        loss.backward()
        middle = time.monotonic()
        self._optimizer.step()
        end = time.monotonic()
        if self._emulated is None:
            self._note(COMPUTE, "forward and backward", began, middle, number)
        elif middle - (ended := self._spans[-1].end) > LEAST_WAIT:
            self._note(WAIT, "end of backward", ended, middle, number)
        self._note(UPDATE, "step", middle, end, number)

    def _note(self, lane: str, name: str, start: float, end: float, iteration: int) -> None:
        node = f"worker {dist.get_rank()}"
        self._spans.append(Span(node=node, lane=lane, name=name, start=start, end=end, iteration=iteration))


def build(workload: Workload, rank: int) -> tuple[nn.Module, Batch]:
    """The model of a workload, and its batches."""
    if workload.compute is None:
        return real_model(workload.model)
    model = Emulated(published(workload.model), compute=workload.compute, scale=workload.scale, rank=rank)
    nothing = torch.zeros(1)
    return model, lambda _: ((nothing,), nothing)


def start(post: Post) -> tuple[Ready, Callable[[Order], Reply]]:
    """The first words, and what obeys orders; models are kept for later orders of the same kind."""
    trainees: dict[tuple[Workload, str, bool], Trainee] = {}

    def obey(order: Order) -> Reply:
        key = (order.workload, order.variant, order.trace)
        if key not in trainees:
            trainees[key] = Trainee(post, order)
        return trainees[key].run(order)

    return Ready(), obey


if __name__ == "__main__":
    serve(Post, Order, start, backend=lambda post: SYSTEMS[post.system].backend)
