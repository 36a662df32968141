"""The process group behind `init_process_group("dovetail")`: reductions on our engine, the rest on Gloo or NCCL."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dovetail.c10d.dtypes import DTYPES
from dovetail.c10d.reducer import Reducer
from dovetail.c10d.works import Call, ReduceWork, WatchedTransfer, WatchedWork
from dovetail.engine.session import Options, Session
from dovetail.engine.table import TensorSpec
from dovetail.errors import BadInput
from dovetail.plan.opening import opening_plan
from dovetail.plan.schedule import bulk_chunk_bytes

AGGREGATION = "ring"  # the least work for a core; large buckets do not feel its hops
MEETING = 60.0  # seconds that the engine's opening may take; torch's own rendezvous has just succeeded
MOST_KINDS = 256  # sizes the engine keeps a channel for; a script with more has its others reduced by Gloo

_UNSET = timedelta(0)  # torch's own word for it is less
_SUM, _AVG, _STRIDED = dist.ReduceOp.SUM, dist.ReduceOp.AVG, torch.strided


class DovetailGroup(dist.ProcessGroup):
    """Everything torch asks of a group; the choice of engine depends only on what is equal on all ranks."""

    def __init__(self, plain: dist.ProcessGroup, reducer: Reducer | None, timeout: timedelta) -> None:
        super().__init__(plain.rank(), plain.size())  # type: ignore[call-arg]  # the form without a store
        self._plain = plain  # torch's own backends; also our own default, for what we do not override
        self._reducer = reducer  # None in a group of one
        self.reduced = 0  # calls that the engine ran
        self._world = plain.size()
        self._limit = timeout.total_seconds()
        self._kinds: set[tuple[torch.dtype, int, int]] = set()
        if reducer is not None:
            weakref.finalize(self, reducer.close)

    def getBackendName(self) -> str:  # torch's spelling
        return "dovetail"

    def allreduce(  # type: ignore[override]  # torch's three overloads in one
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> dist.Work:
        """The sum or mean over all ranks, in place."""
        given = tensors if isinstance(tensors, list) else [tensors]
        asked = _options(opts if op is None else op, timeout)
        divisor = self._divisor(given, asked.reduceOp)
        if divisor:
            return self._reduce(given, divisor, asked.timeout)
        return self._watch(self._plain.allreduce(given, asked), given)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Several tensors as one."""
        asked = opts or dist.AllreduceCoalescedOptions()
        divisor = self._divisor(tensors, asked.reduceOp)
        if divisor:
            return self._reduce(tensors, divisor, asked.timeout)
        return self._watch(self._plain.allreduce_coalesced(tensors, asked), tensors)

    def shutdown(self) -> None:
        """Part from the other ranks."""
        if self._reducer is not None:
            self._reducer.close()
        self._plain.shutdown()

    def _reduce(self, tensors: list[torch.Tensor], divisor: int, timeout: timedelta) -> dist.Work:
        assert self._reducer is not None
        self.reduced += 1
        call = Call(tensors, divisor, timeout.total_seconds() if timeout > _UNSET else self._limit)
        self._reducer.submit(call)
        return ReduceWork(call, tensors, self._reducer.look)

    def _divisor(self, tensors: list[torch.Tensor], op: Any) -> int:
        """What the engine divides sums by; 0 = this is not for the engine."""
        # torch's operation knows its kinds, but not the other way round: it must stand on the left.
        divisor = 1 if op == _SUM else self._world if op == _AVG else 0
        if not divisor or self._reducer is None or not tensors:
            return 0
        dtype, count = tensors[0].dtype, 0
        for tensor in tensors:
            if tensor.dtype != dtype or not tensor.is_cpu or tensor.layout is not _STRIDED:
                return 0
            count += tensor.numel()
        kind = (dtype, count, divisor)
        if kind not in self._kinds:
            if dtype not in DTYPES or len(self._kinds) == MOST_KINDS:
                return 0
            self._kinds.add(kind)
        return divisor

    def _watch(self, work: dist.Work, args: Any, watched: type[WatchedWork] = WatchedWork) -> dist.Work:
        # What runs on a GPU must not be waited for in slices: there a wait is an order to the stream.
        if self._reducer is None or work is None or not _on_cpu(args):
            return work
        return watched(work, self._reducer.loss)


def _on_cpu(args: Any) -> bool:
    tensors = list(_tensors(args))
    return all(t.device.type == "cpu" for t in tensors) if tensors else not torch.cuda.is_available()


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _tensors(arg)


_TRANSFERS = ("send", "recv", "recv_anysource")


def _on_plain(name: str) -> Callable[..., Any]:
    watched = WatchedTransfer if name in _TRANSFERS else WatchedWork

    def run(self: DovetailGroup, *args: Any, **named: Any) -> Any:
        try:
            work = getattr(self._plain, name)(*args, **named)
        except RuntimeError as error:  # Gloo refuses at once to exchange anything with a peer that has gone
            lost = self._reducer.loss(within=0.3) if self._reducer is not None else None
            if lost is None:
                raise
            raise lost from error
        return self._watch(work, (args, tuple(named.values())), watched)

    run.__name__ = name
    run.__doc__ = "As torch's own backend does it; ends when a peer is lost."
    return run


# All that torch's C++ side looks up in a Python group must be here: what it does not find it runs with the GIL held,
# and Gloo's threads take the GIL under the lock that such a call waits for.
for _name in (
    "broadcast", "reduce", "allgather", "all_gather_single", "_allgather_base", "allgather_coalesced", "gather",
    "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "scatter", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base",
    "alltoall", "all_to_all_single", "alltoall_base", "barrier", *_TRANSFERS,
):  # fmt: skip
    if hasattr(dist.ProcessGroup, _name):  # names differ a little between versions of torch
        setattr(DovetailGroup, _name, _on_plain(_name))


def make_group(given: Any, options: Any) -> DovetailGroup:
    """The group torch asked for; `options` may be an engine's Options (`pg_options=`)."""
    if options is not None and not isinstance(options, Options):
        raise BadInput(f"pg_options is a {type(options).__name__}; backend 'dovetail' takes dovetail's Options or none")
    rank, size = int(given.group_rank), int(given.group_size)
    plain = dist.ProcessGroup(rank, size)  # type: ignore[call-arg]
    group = DovetailGroup(plain, _reducer(given, options) if size > 1 else None, given.timeout)
    gloo = dist.ProcessGroupGloo(given.store, rank, size, timeout=given.timeout)
    gloo._set_sequence_number_for_group()
    backends: list[tuple[torch.device, Any, Any]] = [(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)]
    if torch.cuda.is_available() and dist.is_nccl_available():
        nccl_options = dist.ProcessGroupNCCL.Options()
        nccl_options._timeout = given.timeout
        store = dist.distributed_c10d.PrefixStore("cuda/", given.store)
        nccl = dist.ProcessGroupNCCL(store, rank, size, nccl_options)
        backends.append((torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, nccl))
    for one in (plain, group):
        for device, kind, backend in backends:
            one._register_backend(device, kind, backend)
        one._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


def _reducer(given: Any, options: Options | None) -> Reducer:
    rank, size = int(given.group_rank), int(given.group_size)
    store = given.store.clone()  # another connection: torch may wait on its own for as long as it likes
    patience = min(MEETING, given.timeout.total_seconds())

    def opened() -> Session:
        plan = opening_plan("collectives", AGGREGATION, chunk_bytes=bulk_chunk_bytes(AGGREGATION))
        return Session.open(
            store=store,
            rank=rank,
            world=size,
            plan=plan,
            tensors=[TensorSpec(p.name, p.nbytes) for p in plan.params],
            options=options or Options(patience=patience),
            namespace="backend",
        )

    return Reducer(opened, name=f"dovetail group {given.group_id}")


def _options(asked: Any, timeout: timedelta | None) -> Any:
    """torch's options for what was given: those, a reduction, or nothing."""
    if isinstance(asked, dist.AllreduceOptions):
        return asked
    options = dist.AllreduceOptions()
    if asked is not None:
        options.reduceOp = asked
    if timeout is not None:
        options.timeout = timeout
    return options
