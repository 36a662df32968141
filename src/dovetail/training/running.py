"""One distributed optimizer from its start to its end: what was hung on model and optimizer, and taking it off."""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.optim import Optimizer

from dovetail.c10d.limits import time_limit
from dovetail.engine.session import Session
from dovetail.errors import DovetailError, PeerLost, in_a_line
from dovetail.plan.patterns import SHARING
from dovetail.timeline import Span, Timeline
from dovetail.training.autotune import Autotune
from dovetail.training.buffers import Common, broadcast
from dovetail.training.hooks import attach
from dovetail.training.hub_update import HubUpdate
from dovetail.training.job import Job
from dovetail.training.opening import AUTO, Opener, form
from dovetail.training.overrides import Overrides
from dovetail.training.parts import Engine
from dovetail.training.record import Recorder
from dovetail.training.replanning import Auto, Once, Replanner
from dovetail.training.reporting import Reporter
from dovetail.training.slots import Slot, settings
from dovetail.training.solo import Solo
from dovetail.training.update import WorkerUpdate

LEAST_TUNED = 3  # ranks; two move the same bytes whoever masters what
_GOODBYE = 5.0  # seconds the last ranks get to fetch what we still have to send


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a rank can make without the others."""

    slots: list[Slot]
    update: WorkerUpdate | HubUpdate
    opener: Opener | None  # None in a world of one
    recorder: Recorder
    policy: str
    rank: int
    common: Common
    optimizer: Optimizer

    def describe(self, model: torch.nn.Module) -> list[str]:
        """Everything that must be equal on all ranks, one line each."""
        mine = {slot.name for slot in self.slots}
        lines = [f"parameter {slot.name!r} {form(slot.param)} in group {slot.group}" for slot in self.slots]
        lines += [f"frozen {name!r} {form(p)}" for name, p in model.named_parameters() if name not in mine]
        lines += [f"buffer {name!r} {form(b)}" for name, b in model.named_buffers()]
        lines.append(f"broadcast_buffers={self.common.has_buffers}")
        lines += settings(self.optimizer)
        lines += self.opener.describe() if self.opener else []
        return [*lines, f"update at the {'hub' if self.update.remote else 'worker'}"]


class Running:
    """Sets everything up; `shut_down` undoes it."""

    def __init__(self, model: torch.nn.Module, prepared: Prepared, name: str, *, buffers: bool) -> None:
        self.optimizer = prepared.optimizer
        self.common = prepared.common
        self._prepared = prepared
        self._name = name
        self._engine_spans: list[Span] = []
        self._rounds_before = 0  # the present engine
        self._autotune: Autotune | None = None
        self._stack = contextlib.ExitStack()
        opener, update = prepared.opener, prepared.update
        session = opener.first(name) if opener is not None else None
        engine: Engine = session or Solo(len(prepared.slots))
        self.job = Job(prepared.slots, update, engine, prepared.recorder)
        if session is not None:
            self.job.patience = time_limit(torch.device("cpu")).total_seconds()
        self.reporter = Reporter(
            self.job.meter,
            job=name,
            policy=prepared.policy,
            rank=prepared.rank,
            world=opener.world if opener is not None else 1,
            store=opener.store if opener is not None else None,
        )
        self.reporter.follow(engine.usage)
        with self._or_close(engine):
            if opener is not None:
                broadcast([*prepared.common.parameters(model), *(slot.param for slot in prepared.slots)])
                broadcast(prepared.common.buffers(model))
                self.job.barrier = opener.plan.barrier
                self._replanner: Replanner = Auto(opener) if opener.setting.policy == AUTO else Once(opener)
                self.job.looks = self._replanner.looks
                self.job.replan = self._replan
            if isinstance(update, HubUpdate) and isinstance(session, Session):
                update.attach(session)
            self._stack.enter_context(attach(model, self.job, prepared.common if buffers else None))
            self._stack.callback(Overrides(self.optimizer, self.job, update).remove)
            self.job.guard.install()
            self._stack.callback(self.job.guard.remove)
        atexit.register(self._at_exit)

    @contextlib.contextmanager
    def _or_close(self, engine: Engine) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._stack.close()
            engine.close()
            raise

    def _replan(self, rounds: int) -> Engine | None:
        """Go over to another plan where there is reason to; all ranks come here before the same round."""
        opener, update, before = self._prepared.opener, self._prepared.update, self.job.engine
        assert opener is not None
        plan = self._replanner.next(rounds, self.job.order.profile)
        if self._replanner.done:
            self.job.replan = self._tune if opener.setting.autotune else None
        if plan is None:
            self.job.follow(opener.plan.order)
            return None
        if isinstance(update, HubUpdate):
            update.pull()
        session = opener.open(plan)
        self.job.follow(plan.order)
        self.job.barrier = plan.barrier
        if isinstance(update, HubUpdate) and isinstance(session, Session):
            update.attach(session)
        self._collect_spans()
        self._rounds_before += rounds
        self.reporter.follow(session.usage)
        self.job.meter.replanned()
        before.close()  # every rank has all results of the rounds before, or it would not have come here
        return session

    def until_shut_down(self, context: contextlib.AbstractContextManager[None]) -> None:
        """Enter the context now, and leave it when this ends."""
        self._stack.enter_context(context)

    def _tune(self, rounds: int) -> None:
        """Share the masters' work out anew where the network has changed; all ranks come here before the same round."""
        opener, session = self._prepared.opener, self.job.engine
        assert opener is not None
        if self._autotune is None:
            if not isinstance(session, Session) or opener.plan.aggregation not in SHARING or opener.world < LEAST_TUNED:
                self.job.replan = None
                return
            groups = opener.setting.options.groups if opener.plan.aggregation == "two-level" else None
            self._autotune = Autotune(session, self._prepared.recorder, groups=groups)
        self._autotune.round_begins(self._rounds_before + rounds)

    def timeline(self) -> Timeline:
        """This rank's iterations so far."""
        self._collect_spans()
        return self._prepared.recorder.timeline(self._prepared.policy, self._engine_spans)

    def _collect_spans(self) -> None:
        """Engines count their rounds from 1, and a second engine anew; iterations of a timeline count from 0."""
        shift = self._rounds_before - 1
        self._engine_spans += [replace(s, iteration=s.iteration + shift) for s in self.job.engine.spans()]

    def shut_down(self) -> None:
        """Apply what is outstanding, part from the other ranks, and leave model and optimizer as torch made them."""
        atexit.unregister(self._at_exit)
        try:
            self.job.settle_all()
            if isinstance(self._prepared.update, HubUpdate):
                self._prepared.update.pull()  # torch's optimizer goes on with the state it would have had
            self._part()
        except PeerLost:
            if not self.job.gave_up:  # else who called backward() has had the error itself
                raise
        finally:
            self._stack.close()
            self.reporter.stop()
            self.job.engine.close()

    def detach(self) -> None:
        """Leave model and optimizer as they stand, and the engine alone."""
        atexit.unregister(self._at_exit)
        self._stack.close()

    def _at_exit(self) -> None:
        """After an error nothing is waited for: the others are to learn of it at once."""
        failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if failed is None:
            with contextlib.suppress(DovetailError):
                self.job.settle_due()
                self._part()
        elif not isinstance(failed, PeerLost):  # of that the others know
            self.job.engine.fail(in_a_line(failed))
        self.reporter.stop()
        self.job.engine.close()

    def _part(self) -> None:
        """Wait a little for the others: what we have to send them leaves with us."""
        if self._prepared.opener is None:
            return
        store, world = self._prepared.opener.store, self._prepared.opener.world
        key, end = f"dovetail/{self._name}/parted", time.monotonic() + _GOODBYE
        with contextlib.suppress(RuntimeError):  # the store is gone when its owner is
            count = store.add(key, 1)
            while count < world and time.monotonic() < end:
                time.sleep(0.01)
                count = store.add(key, 0)
