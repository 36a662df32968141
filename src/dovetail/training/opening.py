"""Before training starts: ranks agree on the model, plan, and open the engine; every failure is one clear line."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

from dovetail.c10d.executor import C10dSession
from dovetail.c10d.line import fitted
from dovetail.engine.opening import store_host
from dovetail.engine.peers import Meeting, digest
from dovetail.engine.rule import Rule
from dovetail.engine.session import Options, Session
from dovetail.engine.sparse import SparseSession, check_sparse
from dovetail.engine.table import TensorSpec
from dovetail.errors import BadInput, DovetailError, Mismatch
from dovetail.network.measure import route_address
from dovetail.network.model import Cluster, Link
from dovetail.plan.choice import FREE
from dovetail.plan.eager import eager
from dovetail.plan.patterns import PATTERNS, SHARING, unknown
from dovetail.plan.policies import plan_for_training
from dovetail.plan.schedule import Plan
from dovetail.trace.graph import Profile
from dovetail.training.order import registration
from dovetail.training.slots import DTYPES, Slot
from dovetail.training.survey import Finding, Question, judge, probe_ranks

T = TypeVar("T")

NATIVE, C10D = "native", "c10d"  # dovetail's own engine, or the process group that the user has
AUTO, FIRST = "auto", "p3"  # what `auto` starts with until it knows more
_ON_A_GROUP = ("trace", "secret")  # Options that do no harm there; a secret may stand in the environment for other jobs
_PATIENCE = 300.0  # seconds that a rank's first iteration may be slower than another's
_UNKNOWN_LINK = Link(startup=50e-6, bandwidth=125e6)  # until links are measured, if the policy weighs them at all
_GROUP_STARTUP = 5e-3  # of a process group's collectives, if they are slow to start
_FROM_SLOW_TO_FAST = (0.1, 1.0, 10.0)  # times the unknown link's bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the user asked for."""

    policy: str
    hubs: tuple[str, ...]
    aggregation: str | None
    options: Options
    engine: str = NATIVE
    autotune: bool = False

    def __post_init__(self) -> None:
        if self.engine not in (NATIVE, C10D):
            raise BadInput(f"engine={self.engine!r} is unknown; it is {NATIVE!r} or {C10D!r}")
        if self.aggregation not in (None, FREE, *PATTERNS):
            raise unknown(self.aggregation, [*PATTERNS, FREE])
        if self.engine == C10D and self.autotune:
            raise BadInput(f"autotune moves masters, and engine={C10D!r} has none; leave one of them out")
        if self.engine == C10D and (self.hubs or self.aggregation not in (None, "shuffle") or self.options.rate):
            raise BadInput(
                f"engine={C10D!r} sums in the process group, which has its own pattern and keeps to no rate; "
                "leave out hubs, aggregation and rate, or the engine"
            )
        if self.engine == C10D and (idle := self._without_effect()):
            raise BadInput(
                f"engine={C10D!r} runs on the process group's own collectives, which know no {', '.join(idle)}; "
                "leave that out, or the engine"
            )

    def _without_effect(self) -> list[str]:
        """What the user set that only our own engine can do, as `name=value`."""
        usual = Options()
        given = {field.name: getattr(self.options, field.name) for field in fields(Options)}
        return [
            f"{name}={value}"
            for name, value in given.items()
            if name not in _ON_A_GROUP and value != getattr(usual, name)
        ]

    @property
    def pattern(self) -> str | None:
        """The aggregation to plan for; None = what suits. A process group's halves are those of a shuffle."""
        if self.engine == C10D or (self.autotune and self.aggregation is None and not self.hubs):
            return "shuffle"  # whose masters autotune can move
        return None if self.aggregation == FREE else self.aggregation

    @property
    def open_question(self) -> bool:
        """Whether the network must be looked at before anything can be opened."""
        return self.aggregation == FREE or (self.aggregation == "two-level" and self.options.groups is None)


def check_process_group() -> tuple[int, int]:
    """Rank and world of the default process group; BadInput when there is none."""
    if not dist.is_available() or not dist.is_initialized():
        raise BadInput(
            'dovetail.distribute() came before torch.distributed was set up; call dist.init_process_group("gloo") first'
        )
    return dist.get_rank(), dist.get_world_size()


def form(tensor: torch.Tensor) -> str:
    """Type and shape in words: `float32[3, 4]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def agree(prepare: Callable[[], T], describe: Callable[[T], list[str]]) -> tuple[T, str]:
    """Run `prepare` on every rank and compare the descriptions; returns its result and a name for the job.

    A rank that fails tells the others, which would otherwise wait for it.
    """
    failure: Exception | None = None
    lines: list[str] = []
    try:
        made = prepare()
        lines = describe(made)
    except Exception as error:
        failure = error
    shown = digest(lines)
    world = dist.get_world_size()
    said: list[Any] = [None] * world
    dist.all_gather_object(said, (shown, str(failure) if failure else "", secrets.token_hex(4)))
    if failure is not None:
        raise failure
    broken = next((rank for rank, (_, message, _) in enumerate(said) if message), None)
    if broken is not None:
        raise DovetailError(f"rank {broken} could not start: {said[broken][1]}")
    other = next((rank for rank in range(world) if said[rank][0] != said[0][0]), None)
    if other is not None:
        every: list[Any] = [None] * world
        dist.all_gather_object(every, lines)
        raise Mismatch(f"ranks do not train alike: {_difference(every[0], every[other], other)}")
    return made, f"train-{said[0][2]}"


def _difference(zero: list[str], theirs: list[str], rank: int) -> str:
    for one, two in zip(zero, theirs, strict=False):
        if one != two:
            return f"rank 0 has {one}, rank {rank} has {two}"
    where, longer = (0, zero) if len(zero) > len(theirs) else (rank, theirs)
    return f"only rank {where} has {longer[min(len(zero), len(theirs))]}"


class Opener:
    """Plans and opens sessions for one job: a first one, and others when more is known."""

    def __init__(self, setting: Setting, slots: list[Slot], rule: Rule | None) -> None:
        self.setting = setting
        self.place = "worker" if rule is None else "hub"
        self._rule = rule
        self._slots = slots
        self.name = ""
        self._opened = 0
        self._rank, self.world = dist.get_rank(), dist.get_world_size()
        self.store: Any = dist.distributed_c10d._get_default_store()
        self.free = setting.aggregation == FREE  # the pattern is ours to choose
        self.cluster: Cluster | None = None  # once the network has been looked at
        self.plan = self.make_plan(registration(slots))
        self._residuals: dict[str, Any] = {}  # of a sparsified plan; they outlive a session
        if self.plan.keep < 1 and setting.engine == NATIVE:
            check_sparse(self.plan, self._tensors(self.plan))
        if setting.autotune:
            self._check_tunable()

    def describe(self) -> list[str]:
        """What ranks must have in common to meet; a session of the native engine compares the rest itself."""
        lines = [f"policy {self.setting.policy!r}, engine {self.setting.engine!r}"]
        if self.setting.engine == C10D:
            lines.append(f"a plan of {len(self.plan.transfers)} transfers ({digest(self.plan)[:8]})")
        return lines

    def _check_tunable(self) -> None:
        chosen = self.free or self.setting.policy == AUTO  # then a pattern without masters to move is no mistake
        if self.plan.aggregation not in SHARING and not chosen:
            raise BadInput(
                f"autotune moves masters among the ranks, which aggregation {self.plan.aggregation!r} does not have; "
                f"use {' or '.join(SHARING)}, or leave autotune out"
            )
        if self.plan.keep < 1:
            raise BadInput("autotune moves masters, and a sparsified plan has none; leave one of them out")
        if self.place != "worker":
            raise BadInput(
                "autotune moves masters, but update='hub' keeps their state where it is; use update='worker'"
            )

    def make_plan(self, profile: Profile) -> Plan:
        """The policy's plan for what is known of the model."""
        setting = self.setting
        rate = setting.options.rate
        link = Link(startup=_UNKNOWN_LINK.startup, bandwidth=rate) if rate else _UNKNOWN_LINK
        cluster = self.cluster or Cluster.uniform(workers=self.world, link=link, hubs=len(setting.hubs))
        plan = self._plan(profile, cluster)
        measured = setting.engine == C10D and self.cluster is not None
        return fitted(plan, profile, cluster) if measured else plan

    def _plan(self, profile: Profile, cluster: Cluster) -> Plan:
        plan = plan_for_training(profile, cluster, self._policy, aggregation=self.setting.pattern, update=self.place)
        return eager(plan, profile, cluster) if self.setting.engine == C10D else plan

    def weighs_links(self, profile: Profile) -> bool:
        """Whether the policy's plan depends on how fast links are, so that they are worth measuring."""
        if self.world < 2:
            return False
        startups = (_UNKNOWN_LINK.startup, *((_GROUP_STARTUP,) if self.setting.engine == C10D else ()))
        links = [
            Link(startup=startup, bandwidth=_UNKNOWN_LINK.bandwidth * factor)
            for startup in startups
            for factor in _FROM_SLOW_TO_FAST
        ]
        clusters = [Cluster.uniform(workers=self.world, link=link, hubs=len(self.setting.hubs)) for link in links]
        plans = [self._plan(profile, cluster).transfers for cluster in clusters]
        return any(plan != plans[0] for plan in plans)

    @property
    def _policy(self) -> str:
        return FIRST if self.setting.policy == AUTO else self.setting.policy

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._slots[0].param.device

    @property
    def meeting_host(self) -> str:
        """The host whose route tells which of our interfaces the job uses."""
        return self.setting.options.facing or store_host(self.store) or "localhost"

    def agreed(self, topic: str, make: Callable[[], T], kind: Any) -> T:
        """What rank 0 makes, on every rank; all ranks call it."""
        meeting = Meeting(self.store, rank=self._rank, world=self.world, name=f"{self.name}/{topic}", seconds=_PATIENCE)
        if self._rank == 0:
            try:
                meeting.publish(topic, msgspec.json.encode(make()))
            except Exception as error:
                meeting.spoil(error)
                raise
        text = meeting.read(topic, bytes, waits_for="rank 0, which plans the transfers")
        found: T = msgspec.json.decode(text, type=kind)
        return found

    def first(self, name: str) -> Session | SparseSession | C10dSession:
        """A session that takes parameters to be used as they were registered."""
        self.name = name
        if self.setting.open_question:
            self._look()
        return self.open(self.plan)

    def _look(self) -> None:
        """Probe the network, and plan for the pattern and the groups that suit it."""
        setting = self.setting
        address = route_address(self.meeting_host, 1)
        matrix = probe_ranks(self.store, self.name, rank=self._rank, world=self.world, address=address)
        question = Question(
            aggregation=setting.aggregation or FREE,
            policy=self._policy,
            place=self.place,
            hubs=len(setting.hubs),
            groups=setting.options.groups,
            rate=setting.options.rate,
        )
        profile = registration(self._slots)
        found = self.agreed("survey", lambda: judge(question, matrix, profile), Finding)
        if self._rank == 0:
            print(f"dovetail: {found.line}", file=sys.stderr, flush=True)
        self.cluster = found.cluster
        options = replace(setting.options, groups=found.groups)
        self.setting = replace(setting, aggregation=found.aggregation, options=options)
        self.plan = self.make_plan(profile)

    def _tensors(self, plan: Plan) -> list[TensorSpec]:
        sizes = {p.name: p.nbytes for p in plan.params}
        return [TensorSpec(s.name, sizes[s.name], DTYPES[s.param.dtype], s.group) for s in self._slots]

    def open(self, plan: Plan) -> Session | SparseSession | C10dSession:
        """A session that runs `plan`; all ranks call it."""
        self.plan = plan
        self._opened += 1
        tensors = self._tensors(plan)
        namespace = f"{self.name}-{self._opened}"
        if self.setting.engine == C10D:
            trace = self.setting.options.trace
            return C10dSession.open(namespace, plan=plan, tensors=tensors, device=self.device, trace=trace)
        if plan.keep < 1:
            return SparseSession.open(
                store=self.store,
                rank=self._rank,
                world=self.world,
                plan=plan,
                tensors=tensors,
                residuals=self._residuals,
                options=self.setting.options,
                namespace=namespace,
            )
        return Session.open(
            store=self.store,
            rank=self._rank,
            world=self.world,
            plan=plan,
            tensors=tensors,
            hubs=self.setting.hubs,
            rule=self._rule,
            options=replace(self.setting.options, every_pair=self.setting.autotune and plan.aggregation in SHARING),
            namespace=namespace,
        )
