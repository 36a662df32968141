"""The exact way to trace: export forward and backward as one graph, then run it node by node with a clock."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.trace.graph import Op
from dovetail.trace.step import Step, aliases, one_line

PREFIX = "model."
TAKEN_APART = 2  # exported ops per real one from which the graph is another computation; 1 is usual


class NotExportable(Exception):
    """The step cannot be written as a static graph of the ops it really runs; the message says why."""


class _Whole(nn.Module):
    """The step as a module, so that the loss and its backward are part of the graph."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.model = step.model
        self._loss = (step.loss,)  # in a tuple: a loss that is a module must not add its parameters

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._loss[0](self.model(*args, **kwargs))


class Joint:
    """An exported step that can be replayed with a clock and turned into ops."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._alias = aliases(step.model)
        self._graph = _export(step)
        self._nodes = [n for n in self._graph.graph.nodes if n.op == "call_function"]
        self._compare_with_real_forward()
        self._given = {n: self._real(n) for n in self._graph.graph.nodes if n.op in ("placeholder", "get_attr")}
        self._plan = _replay_plan(self._nodes)
        self._times: dict[str, float] = {}
        self._makers = self._gradient_makers()

    def _compare_with_real_forward(self) -> None:
        """Refuse a graph in which fused kernels (an LSTM's) are taken apart: its times would be of other work."""
        exported = sum(1 for n in self._nodes if not _is_backward(n) and n.target is not operator.getitem)
        with torch.no_grad(), _Count() as real:
            self._step.forward()
        if exported > TAKEN_APART * real.ops:
            raise NotExportable(
                f"a real forward runs {real.ops} ops, the exported one {exported}: fused kernels are taken apart in it"
            )

    def replay(self, *, keep: bool) -> float:
        """Run every op once and return the sum of their times; `keep` lets the run count towards the minima."""
        idle = _clock_cost(self._step.settle)
        values: dict[fx.Node, Any] = dict(self._given)
        total = 0.0
        with torch.no_grad():
            for node, dead in self._plan:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                spent, values[node] = _clocked(self._step.settle, node.target, args, kwargs)
                spent = 0.0 if node.target is operator.getitem else max(0.0, spent - idle)
                total += spent
                if keep:
                    self._times[node.name] = min(spent, self._times.get(node.name, spent))
                del args, kwargs
                for gone in dead:
                    del values[gone]
            for name, makers in self._makers.items():
                if len(makers) > 1:
                    spent = self._accumulation(name, len(makers))
                    total += spent
                    if keep:
                        self._times[f"grad/{name}"] = min(spent, self._times.get(f"grad/{name}", spent))
        return total

    def ops(self) -> tuple[Op, ...]:
        """The graph as ops with the least times seen; parameters are read in the forward half."""
        known = {node.name for node in self._nodes}
        single = {makers[0]: name for name, makers in reversed(self._makers.items()) if len(makers) == 1}
        last = {makers[-1]: name for name, makers in self._makers.items() if single.get(makers[-1]) != name}
        ops: list[Op] = []
        for node in self._nodes:
            inputs = tuple(dict.fromkeys(n.name for n in node.all_input_nodes if n.name in known))
            reads = () if _is_backward(node) else self._reads(node)
            time_of = self._times[node.name]
            ops.append(Op(node.name, time_of, inputs, reads, single.get(node.name)))
            # A sum of several uses, or a node that completes a second gradient, gets an op of its own.
            for name in [n for maker, n in last.items() if maker == node.name]:
                ops.append(Op(f"grad/{name}", self._times.get(f"grad/{name}", 0.0), self._makers[name], (), name))
        return tuple(ops)

    def _reads(self, node: fx.Node) -> tuple[str, ...]:
        names = (self._param(n) for n in node.all_input_nodes if n.op == "placeholder")
        return tuple(dict.fromkeys(n for n in names if n is not None))

    def _param(self, node: fx.Node) -> str | None:
        described = node.meta["desc"]
        if not isinstance(described, descriptors.ParamAOTInput):
            return None
        return self._alias.get(described.target.removeprefix(PREFIX))

    def _gradient_makers(self) -> dict[str, tuple[str, ...]]:
        """Parameter -> the nodes whose outputs add up to its gradient, in the order they run."""
        place = {node: i for i, node in enumerate(self._nodes)}
        output = next(n for n in self._graph.graph.nodes if n.op == "output")
        found: dict[str, set[fx.Node]] = {}
        for made, described in zip(output.args[0], output.meta["desc"], strict=True):
            if isinstance(described, descriptors.GradAOTOutput) and made in place:
                source = described.grad_of
                if isinstance(source, descriptors.ParamAOTInput):
                    name = self._alias[source.target.removeprefix(PREFIX)]
                    found.setdefault(name, set()).add(made)
        return {name: tuple(n.name for n in sorted(nodes, key=place.__getitem__)) for name, nodes in found.items()}

    def _accumulation(self, name: str, uses: int) -> float:
        """Seconds to add the gradients of all uses of a tied parameter."""
        like = torch.ones_like(self._step.model.get_parameter(name))
        return (uses - 1) * _clocked(self._step.settle, like.add_, (like,), {})[0]

    def _real(self, node: fx.Node) -> Any:
        """The real tensor behind a graph input."""
        if node.op == "get_attr":
            return getattr(self._graph, str(node.target))
        described = node.meta["desc"]
        if isinstance(described, descriptors.ParamAOTInput):
            return self._step.model.get_parameter(described.target.removeprefix(PREFIX)).detach()
        if isinstance(described, descriptors.BufferAOTInput):
            return self._step.model.get_buffer(described.target.removeprefix(PREFIX)).detach()
        if isinstance(described, descriptors.PlainAOTInput):
            return pytree.tree_leaves((self._step.args, self._step.kwargs))[described.idx]
        if isinstance(described, descriptors.TangentAOTInput):
            fake = node.meta["val"]
            return torch.ones(fake.shape, dtype=fake.dtype, device=fake.device)
        raise NotExportable(f"the graph has an input of the kind {type(described).__name__}")


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the ops that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        return func(*args, **(kwargs or {}))


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def _export(step: Step) -> fx.GraphModule:
    # Targets that a loss closes over are real tensors; as inputs they would have been made fake.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: fake.from_tensor(t, static_shapes=True), (step.args, step.kwargs)
    )
    with ExitStack() as stack:
        try:
            graph = aot_export_joint_with_descriptors(stack, _Whole(step), args, kwargs).graph_module
        except Exception as error:  # the exporter raises whatever the model's Python meets on fake tensors
            raise NotExportable(f"the model is no static graph ({one_line(error)})") from error
    assert isinstance(graph, fx.GraphModule)
    return graph


def _replay_plan(nodes: list[fx.Node]) -> list[tuple[fx.Node, list[fx.Node]]]:
    """Each node with the values nobody needs after it, so that a replay holds no more memory than a step."""
    last: dict[fx.Node, fx.Node] = {}
    ours = set(nodes)
    for node in nodes:
        last[node] = node
        for used in node.all_input_nodes:
            if used in ours:
                last[used] = node
    dead: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
    for value, user in last.items():
        dead[user].append(value)
    return [(node, dead[node]) for node in nodes]


def _clocked(settle: Callable[[], None], call: Any, args: Any, kwargs: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call(*args, **kwargs)
    settle()
    return time.perf_counter() - start, result


def _clock_cost(settle: Callable[[], None]) -> float:
    """Seconds between two readings of the clock around a call that does nothing.

    The call of an op itself stays in: a real step pays for dispatch as well.
    """
    return min(_clocked(settle, _nothing, (), {})[0] for _ in range(20))


def _nothing() -> None:
    return None
