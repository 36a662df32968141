"""One host of `bench pull`: rank 0 holds the training job whose hub is asked, the others are inference agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch
import torch.distributed as dist

from dovetail.bench.emulate import Accelerator
from dovetail.bench.models import published
from dovetail.bench.orders import PullOrder, PullPost, PullReply, Workload
from dovetail.bench.serve import serve
from dovetail.engine.client import Client
from dovetail.engine.session import Options, Rule, Session
from dovetail.engine.table import TensorSpec
from dovetail.errors import DovetailError
from dovetail.plan.schedule import REDUCE, Plan, Transfer
from dovetail.trace.graph import Param

VALUE = 3.0  # of every parameter, so that a client knows when it got something else


def start(post: PullPost) -> tuple[PullReply, Callable[[PullOrder], PullReply]]:
    """Ready, and what obeys orders."""

    def obey(order: PullOrder) -> PullReply:
        with ExitStack() as stack:
            if dist.get_rank() == 0:
                stack.enter_context(_train(post, order))
            dist.barrier()  # the hub has the parameters
            seconds = None
            if dist.get_rank() > 0:
                client = stack.enter_context(Client.connect([post.hub], namespace=order.namespace))
                dist.barrier(_clients)
                seconds = forward(client, post.workload)
            dist.barrier()  # nobody pulls any more
            return PullReply(seconds=seconds)

    _clients = dist.new_group(list(range(1, dist.get_world_size())))
    return PullReply(), obey


def forward(client: Client, workload: Workload) -> float:
    """Seconds from the first request to the end of a forward pass that waits for each layer's parameter."""
    layers = published(workload.model)
    assert workload.compute is not None
    second = workload.compute / sum(layer.flops for layer in layers)
    accelerator, here = Accelerator(), set[str]()
    nothing = torch.zeros(())
    begun = time.monotonic()
    arriving = client.stream()
    for layer in layers:
        while layer.params and layer.name not in here:
            name, pulled = next(arriving)
            if pulled.values[-1] != VALUE:
                raise DovetailError(f"parameter {name!r} came as {pulled.values[-1]}, but the job has put {VALUE}")
            here.add(name)
        accelerator.run(layer.name, layer.flops * second, lambda: nothing, None)
    return time.monotonic() - begun


def _train(post: PullPost, order: PullOrder) -> Session:
    """A job of one worker that has put its parameters to the hub; its pulls have the priorities of the order."""
    held = [layer for layer in published(post.workload.model) if layer.params]
    values = [np.full(layer.elements(post.workload.scale), VALUE, dtype=np.float32) for layer in held]
    pairs = [(layer.name, array.nbytes) for layer, array in zip(held, values, strict=True)]
    plan = Plan(
        policy="pull",
        params=tuple(Param(name, nbytes) for name, nbytes in pairs),
        transfers=tuple(Transfer(REDUCE, ((name, 0, nbytes),), order.priorities[name]) for name, nbytes in pairs),
        aggregation="hub",
        update="hub",
    )
    session = Session.open(
        store=dist.distributed_c10d._get_default_store(),
        rank=0,
        world=1,
        plan=plan,
        tensors=[TensorSpec(name, nbytes) for name, nbytes in pairs],
        hubs=[post.hub],
        rule=Rule(kind="sgd"),
        options=Options(rate=post.rate),
        namespace=order.namespace,
    )
    for index, array in enumerate(values):
        session.put(index, 0, array.ctypes.data)
    for index, array in enumerate(values):
        if not session.get(index, 0, array.ctypes.data):  # the hub's answer: what was put is there
            raise DovetailError(f"the hub has no copy of {pairs[index][0]!r}")
    return session


if __name__ == "__main__":
    serve(PullPost, PullOrder, start)
