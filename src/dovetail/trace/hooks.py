"""The way to trace that always works: cut a real step where modules start and end and where gradients complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dovetail.trace.graph import Op
from dovetail.trace.step import Step, aliases

Cut = tuple[str, int]  # what happened, and for the how-many-th time in this step
START: Cut = ("step/forward", 0)


class Hooked:
    """Real steps cut into consecutive segments; the sum of a step's segments is the step."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._alias = aliases(step.model)
        self._least: dict[Cut, float] = {}
        self._order: list[Cut] = []
        self._reads = self._find_reads()

    def run(self, *, keep: bool) -> float:
        """Seconds of one real step, cut at the hooks; `keep` lets it count towards the minima."""
        cuts = _Cuts(self._step.settle)
        with self._module_hooks(cuts.mark), self._gradient_hooks(cuts.mark):
            for parameter in self._step.model.parameters():
                parameter.grad = None
            cuts.mark(START[0])
            value = self._step.forward()
            cuts.mark("step/backward")
            value.backward()  # type: ignore[no-untyped-call]
            cuts.mark("step/end")
        lengths = cuts.lengths()
        if keep:
            self._order = list(lengths)
            for cut, spent in lengths.items():
                self._least[cut] = min(spent, self._least.get(cut, spent))
        return sum(lengths.values())

    def ops(self) -> tuple[Op, ...]:
        """The segments of the last kept step as a chain of ops with the least times seen."""
        ops: list[Op] = []
        done: set[str] = set()
        for kind, nth in self._order:
            name = kind if nth == 0 else f"{kind} #{nth + 1}"
            before = (ops[-1].name,) if ops else ()
            param = self._alias.get(kind.removeprefix("grad/")) if kind.startswith("grad/") else None
            if (
                param is not None and param in done
            ):  # a checkpointed parameter may fire twice; the last one completes it
                ops = [_without_gradient(op) if op.produces == param else op for op in ops]
            done.update({param} if param else ())
            ops.append(Op(name, self._least[(kind, nth)], before, self._reads.get((kind, nth), ()), param))
        return tuple(ops)

    def _find_reads(self) -> dict[Cut, tuple[str, ...]]:
        """Segment -> parameters it uses, functional uses included, from one step under a function mode."""
        names = {id(p): self._alias.get(n) for n, p in self._step.model.named_parameters(remove_duplicate=False)}
        cuts = _Cuts(self._step.settle)
        found: dict[Cut, dict[str, None]] = {}
        mode = _ParameterUses(names, lambda name: found.setdefault(cuts.current, {}).setdefault(name))
        with self._module_hooks(cuts.mark), mode:
            cuts.mark(START[0])
            self._step.forward()
        return {cut: tuple(reads) for cut, reads in found.items()}

    @contextmanager
    def _module_hooks(self, mark: Callable[[str], None]) -> Iterator[None]:
        handles = []
        for name, module in self._step.model.named_modules():
            if name and not isinstance(module, nn.ModuleList | nn.ModuleDict):
                handles.append(module.register_forward_pre_hook(_marker(mark, f"{name}/forward")))
                handles.append(module.register_forward_hook(_marker(mark, f"{name}/after")))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _gradient_hooks(self, mark: Callable[[str], None]) -> Iterator[None]:
        """A gradient's segment ends when it is complete, so its mark names the segment before it."""
        handles = [
            p.register_post_accumulate_grad_hook(_marker(mark, f"grad/{n}"))  # type: ignore[no-untyped-call]
            for n, p in self._step.model.named_parameters()
            if p.requires_grad
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _Cuts:
    """Marks with their instants; a gradient's mark ends its segment, every other mark starts one."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._marks: list[tuple[Cut, float]] = []
        self._seen: dict[str, int] = {}

    @property
    def current(self) -> Cut:
        return self._marks[-1][0] if self._marks else START

    def mark(self, kind: str) -> None:
        self._settle()
        now = time.perf_counter()
        nth = self._seen.get(kind, 0)
        self._seen[kind] = nth + 1
        self._marks.append(((kind, nth), now))

    def lengths(self) -> dict[Cut, float]:
        """Segment -> seconds, in the order the step went through them."""
        spent: dict[Cut, float] = {}
        for (cut, start), (after, end) in zip(self._marks, self._marks[1:], strict=False):
            owner = after if after[0].startswith("grad/") else cut
            if after[0] == "step/end" and cut[0].startswith("grad/"):
                owner = after
            spent[owner] = spent.get(owner, 0.0) + end - start
        return spent


class _ParameterUses(TorchFunctionMode):
    def __init__(self, names: dict[int, str | None], use: Callable[[str], Any]) -> None:
        super().__init__()
        self._names, self._use = names, use

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Reading an attribute (shape, dtype, requires_grad) is a call of its getter and no use of the values.
        if getattr(func, "__name__", "") != "__get__":
            for leaf in pytree.tree_leaves((args, kwargs)):
                name = self._names.get(id(leaf)) if isinstance(leaf, Tensor) else None
                if name is not None:
                    self._use(name)
        return func(*args, **(kwargs or {}))


def _marker(mark: Callable[[str], None], kind: str) -> Callable[..., None]:
    return lambda *_: mark(kind)


def _without_gradient(op: Op) -> Op:
    return Op(op.name, op.time, op.inputs, op.reads, None)
