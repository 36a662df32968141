"""`dovetail.distribute`: one line in a script, and the loop around it stays as it is."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from dovetail.engine.session import Options
from dovetail.errors import BadInput, DovetailError
from dovetail.plan.policies import policies
from dovetail.timeline import Timeline
from dovetail.training.buffers import broadcast_from_zero
from dovetail.training.gather import gather
from dovetail.training.hooks import attach
from dovetail.training.hub_update import HubUpdate, rule_of
from dovetail.training.job import Job
from dovetail.training.opening import Opener, Setting, agree, check_process_group, describe
from dovetail.training.overrides import Overrides, check_untouched
from dovetail.training.record import Recorder
from dovetail.training.slots import Slot, trained
from dovetail.training.solo import Solo
from dovetail.training.update import WorkerUpdate

_UPDATES = ("auto", "worker", "hub")
_GOODBYE = 5.0  # seconds the last ranks get to fetch what we still have to send
_running: weakref.WeakKeyDictionary[torch.nn.Module, list[Distributed]] = weakref.WeakKeyDictionary()


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
    trace: bool = False,
    options: Options | None = None,
) -> Optimizer:
    """Train `model` data-parallel from here on; returns the same optimizer, whose `step()` no longer waits.

    `hubs` are addresses of `dovetail hub` (default: DOVETAIL_HUBS, or a shard on every rank); `rate` limits what this
    rank sends, in bytes per second; `update` says where the optimizer runs: "worker", "hub", or "auto".
    """
    _, world = check_process_group()
    given = hubs if hubs is not None else [h for h in os.environ.get("DOVETAIL_HUBS", "").split(",") if h.strip()]
    base = options or Options()
    setting = Setting(
        policy=policy,
        hubs=tuple(h.strip() for h in given),
        aggregation=aggregation,
        options=replace(
            base,
            deterministic=deterministic or base.deterministic,
            rate=rate or base.rate,
            trace=trace or base.trace,
            secret=base.secret or _secret(os.environ.get("DOVETAIL_SECRET_FILE", "")),
        ),
    )
    slots: list[Slot] = []
    place = "worker"

    def prepare() -> list[str]:
        nonlocal place
        check_untouched(optimizer)
        slots.extend(trained(model, optimizer.param_groups))
        place = _place(setting, optimizer, update, world)
        return [f"update at the {place}", *describe(model, slots)]

    name = agree(prepare)
    running = Distributed(model, optimizer, slots, setting, place, name)
    _running.setdefault(model, []).append(running)
    return optimizer


def _place(setting: Setting, optimizer: Optimizer, update: str, world: int) -> str:
    """Where the optimizer runs: at dedicated hubs if it can, else at the worker."""
    if update not in _UPDATES:
        raise BadInput(f"update={update!r} is unknown; it is one of {', '.join(_UPDATES)}")
    if update == "worker" or world == 1:
        return "worker"
    if update == "hub":
        rule_of(optimizer)
        return "hub"
    known = policies().get(setting.policy)
    pattern = setting.aggregation or (known.aggregation if known else None)
    if not setting.hubs or pattern not in (None, "hub", "rack-hubs"):
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


class Distributed:
    """Everything that one call of `distribute` set up, and how it is taken down again."""

    def __init__(
        self, model: torch.nn.Module, optimizer: Optimizer, slots: list[Slot], setting: Setting, place: str, name: str
    ) -> None:
        rank, self._world = check_process_group()
        self._update = HubUpdate(optimizer, slots, rank) if place == "hub" else WorkerUpdate(optimizer)
        self._opener = Opener(setting, slots, name, self._update.rule, place) if self._world > 1 else None
        self._policy = setting.policy
        self._name = name
        self._engine_spans: list[Any] = []
        engine = self._opener.first() if self._opener else Solo(len(slots))
        self._stack = contextlib.ExitStack()
        try:
            first = model not in _running
            if self._world > 1:
                broadcast_from_zero([*(p for p in model.parameters()), *(slot.param for slot in slots)])
                broadcast_from_zero(model.buffers())
            self.job = Job(slots, self._update, engine, Recorder(f"worker {rank}", enabled=setting.options.trace))
            if isinstance(self._update, HubUpdate):
                self._update.attach(engine)  # type: ignore[arg-type]
            if self._opener is not None:
                self.job.barrier = self._opener.plan.barrier
                self.job.replan = self._replan
            self._stack.enter_context(attach(model, self.job, buffers=first and self._world > 1))
            overrides = Overrides(optimizer, self.job, self._update)
            self._stack.callback(overrides.remove)
            self.job.guard.install()
            self._stack.callback(self.job.guard.remove)
        except BaseException:
            engine.close()
            raise
        atexit.register(self._at_exit)

    def _replan(self) -> Any:
        """The order of use is known: go over to the plan made for it, if that is another one."""
        assert self._opener is not None
        before = self.job.engine
        session = self._opener.again(self.job.order.profile())
        self.job.order.ranks = {name: rank for rank, name in enumerate(self._opener.plan.order)}
        if session is None:
            return None
        if isinstance(self._update, HubUpdate):
            self._update.pull()
            self._update.attach(session)
        self._engine_spans += before.spans()
        before.close()  # every rank has all results of the first round, or it would not have come here
        return session

    def timeline(self) -> Timeline:
        """This rank's iterations so far."""
        self._engine_spans += self.job.engine.spans()
        return self.job.recorder.timeline(self._policy, self._engine_spans)

    def shut_down(self) -> None:
        """Apply what is outstanding, part from the other ranks, and leave model and optimizer as torch made them."""
        atexit.unregister(self._at_exit)
        try:
            self.job.settle_all()
            self._part()
        finally:
            self._stack.close()
            self.job.engine.close()

    def _at_exit(self) -> None:
        """After an error nothing is waited for: the others are to learn of it at once."""
        failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if failed is None:
            with contextlib.suppress(DovetailError):
                self.job.settle_due()
                self._part()
        self.job.engine.close()

    def _part(self) -> None:
        """Wait a little for the others: what we have to send them leaves with us."""
        if self._opener is None:
            return
        store, key = self._opener.store, f"dovetail/{self._name}/parted"
        end = time.monotonic() + _GOODBYE
        with contextlib.suppress(RuntimeError):  # the store is gone when its owner is
            count = store.add(key, 1)
            while count < self._world and time.monotonic() < end:
                time.sleep(0.01)
                count = store.add(key, 0)


def _of(model: torch.nn.Module) -> list[Distributed]:
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


def timeline(model: torch.nn.Module) -> Timeline:
    """What this rank computed, sent, received, updated and waited for since `distribute(..., trace=True)`."""
    return _of(model)[0].timeline()


def gather_timeline(model: torch.nn.Module) -> Timeline | None:
    """All ranks' timelines on one clock, on rank 0 (None elsewhere); every rank calls it."""
    return gather(timeline(model))


def shutdown(model: torch.nn.Module) -> None:
    """Finish what is outstanding and undo `distribute`; every rank calls it."""
    for running in _of(model):
        running.shut_down()
    del _running[model]
