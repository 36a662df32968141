"""`dovetail.distribute`: one line in a script, and the loop around it stays as it is."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from dovetail.engine.session import Options, Session
from dovetail.engine.traffic import traffic
from dovetail.errors import BadInput, DovetailError
from dovetail.plan.policies import policies
from dovetail.timeline import Timeline
from dovetail.training.buffers import Common
from dovetail.training.clipping import clip
from dovetail.training.gather import gather
from dovetail.training.hub_update import HubUpdate, rule_of
from dovetail.training.opening import C10D, NATIVE, Opener, Setting, agree, check_process_group
from dovetail.training.overrides import check_untouched
from dovetail.training.record import Recorder
from dovetail.training.reporting import serve_if_asked
from dovetail.training.running import Prepared, Running
from dovetail.training.slots import check_own, trained
from dovetail.training.stats import Stats
from dovetail.training.uneven import uneven
from dovetail.training.update import WorkerUpdate
from dovetail.training.wrapped import check_common, check_wrapped, reducer_off

_UPDATES = ("auto", "worker", "hub")
_running: weakref.WeakKeyDictionary[torch.nn.Module, list[Running]] = weakref.WeakKeyDictionary()
_of_parent: list[Running] = []  # kept: to take an engine apart is to wait for its threads, which a fork does not have


def _forked() -> None:
    """In a child, such as a DataLoader's worker: model and optimizer are copies as they stand, which nobody feeds."""
    for running in itertools.chain.from_iterable(_running.values()):
        running.detach()
        _of_parent.append(running)
    _running.clear()


os.register_at_fork(after_in_child=_forked)


def distribute(
    model: torch.nn.Module,
    optimizer: Optimizer,
    *,
    policy: str = "p3",
    hubs: Sequence[str] | None = None,
    aggregation: str | None = None,
    update: str = "auto",
    deterministic: bool = False,
    rate: float = 0.0,
    autotune: bool = False,
    trace: bool = False,
    engine: str = NATIVE,
    broadcast_buffers: bool | None = None,
    options: Options | None = None,
) -> Optimizer:
    """Train `model` data-parallel from here on; returns the same optimizer, whose `step()` no longer waits.

    `hubs` are addresses of `dovetail hub` (default: DOVETAIL_HUBS, or a shard on every rank); `rate` limits what this
    rank sends, in bytes per second; `update` says where the optimizer runs: "worker", "hub", or "auto"; `engine="c10d"`
    runs the schedule on the process group's own collectives. A DDP model's own reducer sends nothing from here on.
    `autotune` moves work away from ranks whose links get slow; `broadcast_buffers` as in DDP (default: as the DDP model
    says, else True).
    """
    rank, world = check_process_group()
    first = model not in _running
    given = hubs if hubs is not None else [h for h in os.environ.get("DOVETAIL_HUBS", "").split(",") if h.strip()]
    base = options or Options()

    def prepare() -> Prepared:
        if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, Optimizer):
            raise BadInput(
                f"distribute(model, optimizer) got a {type(model).__name__} and a {type(optimizer).__name__}; "
                "give it a torch.nn.Module and its torch.optim.Optimizer"
            )
        setting = Setting(
            policy=policy,
            hubs=tuple(h.strip() for h in given),
            aggregation=aggregation,
            autotune=autotune,
            options=replace(
                base,
                deterministic=deterministic or base.deterministic,
                rate=rate or base.rate,
                trace=trace or base.trace,
                secret=base.secret or _secret(os.environ.get("DOVETAIL_SECRET_FILE", "")),
            ),
            engine=engine,
        )
        _check_new(optimizer)
        check_untouched(optimizer)
        serve_if_asked()
        check_wrapped(model)
        common = Common(model, buffers=broadcast_buffers)
        if not first and common.has_buffers != _of(model)[0].common.has_buffers:
            raise BadInput(
                f"broadcast_buffers={common.has_buffers} differs from what the model's first optimizer was given; "
                "give all of them the same"
            )
        slots = trained(model, optimizer.param_groups, in_host_memory=engine == NATIVE)
        if first:
            check_own(model, slots)
        check_common(common, slots)
        worker = world == 1 or _place(setting, optimizer, update) == "worker"
        change = WorkerUpdate(optimizer) if worker else HubUpdate(optimizer, slots, rank)
        opener = Opener(setting, slots, change.rule) if world > 1 else None
        recorder = Recorder(f"worker {rank}", enabled=setting.options.trace)
        return Prepared(
            slots=slots,
            update=change,
            opener=opener,
            recorder=recorder,
            policy=policy,
            rank=rank,
            common=common,
            optimizer=optimizer,
        )

    try:
        prepared, name = agree(prepare, lambda found: found.describe(model))
        running = Running(model, prepared, name, buffers=first and world > 1)
    except DovetailError as error:
        raise error.with_traceback(None) from None  # says it all; how the ranks met tells a user nothing
    if first:
        running.until_shut_down(reducer_off(model, no_sync))
    _running.setdefault(model, []).append(running)
    return optimizer


def _check_new(optimizer: Optimizer) -> None:
    """BadInput if a parameter is trained by an earlier call: both would send its gradient, from the same memory."""
    taken = {id(slot.param) for jobs in _running.values() for running in jobs for slot in running.job.slots}
    if any(id(param) in taken for group in optimizer.param_groups for param in group["params"]):
        raise BadInput(
            "a parameter of this optimizer is distributed already; call dovetail.shutdown(model) before the next "
            "dovetail.distribute(), and give each parameter to one optimizer only"
        )


def _place(setting: Setting, optimizer: Optimizer, update: str) -> str:
    """Where the optimizer runs; "auto" is at dedicated hubs if that gives torch's bits, else at the worker."""
    if update not in _UPDATES:
        raise BadInput(f"update={update!r} is unknown; it is one of {', '.join(_UPDATES)}")
    if setting.engine == C10D and update == "hub":
        raise BadInput(f"update='hub' with engine={C10D!r}: a process group has no hub; leave one of them out")
    if update != "auto":
        return update
    known = policies().get(setting.policy)
    pattern = setting.aggregation or (known.aggregation if known else None)
    if not setting.hubs or pattern not in (None, "hub") or type(optimizer) is not torch.optim.SGD:
        return "worker"
    try:
        rule_of(optimizer)
    except BadInput:
        return "worker"
    return "hub"


def _secret(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError as error:
        raise BadInput(f"cannot read the secret file {path} (DOVETAIL_SECRET_FILE): {error.strerror}") from None


def _of(model: torch.nn.Module) -> list[Running]:
    found = _running.get(model, [])
    if not found:
        raise BadInput("this model is not distributed; call dovetail.distribute(model, optimizer) first")
    return found


@contextlib.contextmanager
def no_sync(model: torch.nn.Module) -> Iterator[None]:
    """Gradients made inside stay on this rank; the first backward pass outside sends what has been accumulated."""
    jobs = [(running.job, running.job.syncing) for running in _of(model)]
    for job, _ in jobs:
        job.syncing = False
    try:
        yield
    finally:
        for job, before in jobs:
            job.syncing = before


def stats(model: torch.nn.Module | None = None) -> Stats:
    """This rank's figures now: overlap, exposed communication, who is late, bytes by priority; nothing is waited for.

    `model` may be left out where only one is distributed. Of several optimizers of a model, the first one's figures.
    """
    if model is None:
        models = list(_running)
        if len(models) != 1:
            todo = "say which: dovetail.stats(model)" if models else "call dovetail.distribute() first"
            raise BadInput(f"{len(models)} models are distributed here; {todo}")
        model = models[0]
    return _of(model)[0].reporter.stats()


@contextlib.contextmanager
def join(model: torch.nn.Module) -> Iterator[None]:
    """Inside, ranks may have different numbers of iterations; one that has none left answers the others' rounds.

    As with DDP's `join`, means are still over all ranks, and at the end all hold the last rank's weights, and here its
    optimizer state, too.
    """
    found = _of(model)
    common = found[0].common
    with uneven(model, common, [running.job for running in found], [running.optimizer for running in found]):
        yield


def clip_grad_norm_(
    model: torch.nn.Module, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Clip the model's mean gradients by their global norm, which it returns; all ranks call it after backward().

    It waits until the sums are complete, not until they have come back, which torch's own function does.
    """
    return clip([running.job for running in _of(model)], float(max_norm), float(norm_type), error_if_nonfinite)


def timeline(model: torch.nn.Module) -> Timeline:
    """What this rank computed, sent, received, updated and waited for since `distribute(..., trace=True)`."""
    return _of(model)[0].timeline()


def gather_timeline(model: torch.nn.Module) -> Timeline | None:
    """All ranks' timelines on one clock, on rank 0 (None elsewhere); every rank calls it."""
    return gather(timeline(model))


def loads(model: torch.nn.Module) -> list[float]:
    """Bytes that each rank sends in a step by the schedule in force; all 0 where no engine of ours sends."""
    engine = _of(model)[0].job.engine
    return traffic(engine.table).sum(axis=1).tolist() if isinstance(engine, Session) else [0.0] * dist.get_world_size()


def shutdown(model: torch.nn.Module) -> None:
    """Finish what is outstanding and undo `distribute`; every rank calls it."""
    with contextlib.ExitStack() as each:  # an error of one leaves none of them as it was
        for running in reversed(_of(model)):
            each.callback(running.shut_down)
        del _running[model]
