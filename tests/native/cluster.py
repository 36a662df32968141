"""All nodes of a job in one process, joined by real loopback sockets: for tests of the native engine."""

from __future__ import annotations

import socket
from types import TracebackType

import numpy as np

from dovetail import _native
from dovetail.engine import table as tables
from dovetail.plan.schedule import Plan

WAIT = 20.0


class InProcessCluster:
    """`workers` ranks and `hubs` hubs running `plan`; entering links and starts them, leaving closes them."""

    def __init__(self, plan: Plan, tensors: list[tables.TensorSpec], *, workers: int, hubs: int = 0, **options) -> None:
        lanes = options.pop("lanes", 1)
        groups = options.pop("groups", None)
        self.rule = options.pop("rule", 0)
        threads = options.pop("threads", 1)
        rate = options.pop("rate", 0.0)
        self.table = tables.build(plan, tensors, workers=workers, hubs=hubs, lanes=lanes, groups=groups)
        self.workers = workers
        labels = [f"node {n}" for n in range(workers + hubs)]
        options.setdefault("timeout", 5.0)
        self.engines = [_native.Engine(threads=threads, rate=rate, trace=True) for _ in labels]
        self.jobs = [engine.job("test", node, labels, workers, **options) for node, engine in enumerate(self.engines)]

    def __enter__(self) -> InProcessCluster:
        for node, job in enumerate(self.jobs):
            view = self.table.for_node(node)
            job.table(view.programs, view.tensors, view.chunks, view.transfers, view.windows)
            job.rule(self.rule)
            for peer in self.table.peers(node):
                if peer < node:
                    for lane in range(self.table.lanes):
                        near, far = tcp_pair()
                        job.link(peer, lane, near)
                        self.jobs[peer].link(node, lane, far)
        for job in self.jobs:
            job.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self.jobs:
            job.close()

    def reduce(self, gradients: list[list[np.ndarray | None]], iteration: int) -> None:
        """Submit each rank's gradients (None = absent), open every gate, and wait for all results."""
        for rank, own in enumerate(gradients):
            for tensor, values in enumerate(own):
                self.jobs[rank].submit(tensor, iteration, 0 if values is None else values.ctypes.data)
            self.jobs[rank].backward_done(iteration)
            self.jobs[rank].release(iteration)
        for rank, own in enumerate(gradients):
            assert self.jobs[rank].wait(list(range(len(own))), iteration, WAIT), f"rank {rank} waits in vain"


def tcp_pair() -> tuple[int, int]:
    """Two ends of one TCP connection, as file descriptors."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near.detach(), far.detach()
