"""State at any moment, every way to read a parameter, and what is refused. Run on two ranks by test_semantics.py."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import networks
import pytest
import torch
import torch.distributed as dist
from networks import (
    OPTIMIZERS,
    Mlp,
    Side,
    batch,
    both,
    build,
    ddp,
    distribute,
    dovetailed,
    in_flight,
    possible,
    same,
    same_state,
)
from scenarios_loop import SLOW
from torch import nn

from dovetail.engine.session import Options
from dovetail.errors import BadInput, DovetailError, Misuse, PeerLost
from dovetail.plan.policies import policies
from dovetail.training import gather_timeline, no_sync, shutdown, timeline


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS["sgd"](model.parameters())


def _refused(kind: type[DovetailError], word: str, call: Callable[[], Any]) -> None:
    # Inside backward() either rank may be the first to refuse, and the other one hears its words.
    with pytest.raises((kind, PeerLost)) as caught:
        call()
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def every_read_sees_the_step() -> None:
    reads: dict[str, Callable[[Any], torch.Tensor]] = {
        "data": lambda m: m.middle.weight.data,
        "detach": lambda m: m.middle.weight.detach(),
        "numpy": lambda m: torch.from_numpy(m.middle.weight.detach().numpy()),
        "tolist": lambda m: torch.tensor(m.middle.weight.tolist()),
        "item": lambda m: torch.tensor(m.middle.weight[3, 3].item()).expand(96, 96),
        "clone": lambda m: m.middle.weight.clone(),
        "add": lambda m: m.middle.weight + 0,
        "stack": lambda m: torch.stack([m.middle.weight, m.middle.weight])[0],
        "kwargs": lambda m: torch.add(input=m.middle.weight, other=0),
        "deepcopy": lambda m: copy.deepcopy(m).middle.weight,
        "pickle": lambda m: pickle.loads(pickle.dumps(m)).middle.weight,
        "save": lambda m: _saved(m).middle.weight,
        "state_dict": lambda m: m.state_dict()["middle.weight"],
        "keep_vars": lambda m: m.state_dict(keep_vars=True)["middle.weight"] * 1,
        "vector": lambda m: nn.utils.parameters_to_vector(m.parameters())[8 * 96 + 96 :][: 96 * 96].view(96, 96),
        "functional_call": lambda m: torch.func.functional_call(
            nn.Linear(96, 96), {"weight": m.middle.weight, "bias": torch.zeros(96)}, torch.eye(96)
        ).t(),
        "foreach": lambda m: torch._foreach_add([m.middle.weight], 0.0)[0],
        "repr": lambda m: _printed(m.middle.weight),
    }
    reference = ddp("mlp", _sgd)
    side = dovetailed("mlp", _sgd, update="worker", **SLOW)
    alias = side.model.middle.weight.data.view(-1)[96:]  # taken before the step: the same memory under another name
    reads["alias"] = lambda m: torch.cat([m.middle.weight.data_ptr() * torch.zeros(96), alias.clone()]).view(96, 96)
    for i, (name, read) in enumerate(reads.items()):
        reference.step(i)
        side.step(i)
        assert in_flight(side) > 0, name
        if name == "alias":
            assert torch.equal(alias.clone(), reference.model.middle.weight.data.view(-1)[96:])
            continue
        found, wanted = read(side.model), read(reference.model)
        assert torch.equal(found, wanted), name
    shutdown(side.model)


def _saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded(torch.ones(2, 8))  # its hooks do nothing
    return loaded


def _printed(tensor: torch.Tensor) -> torch.Tensor:
    return torch.tensor([float(ord(letter)) for letter in repr(tensor)])


def state_dicts_in_mid_flight() -> None:
    for update in ("worker", "hub"):
        reference, side = ddp("mlp", _sgd), dovetailed("mlp", _sgd, update=update, **SLOW)
        for i in range(2):
            reference.step(i)
            side.step(i)
        assert in_flight(side) > 0
        same_state(reference.optimizer, side.optimizer)
        reference.step(2)
        side.step(2)
        loaded = pickle.loads(pickle.dumps(side.optimizer))
        assert type(loaded) is torch.optim.SGD
        assert loaded.state_dict()["state"].keys() == reference.optimizer.state_dict()["state"].keys()
        for key, values in loaded.state_dict()["state"].items():
            wanted = reference.optimizer.state_dict()["state"][key]["momentum_buffer"]
            assert torch.equal(values["momentum_buffer"], wanted)
        reference.step(3)
        side.step(3)
        same(reference.model.state_dict(), side.model.state_dict())
        shutdown(side.model)


def resuming_from_a_checkpoint() -> None:
    for update, name in (("worker", "adamw"), ("hub", "sgd"), ("hub", "adamw")):
        if not possible(update):
            continue
        whole = dovetailed("mlp", lambda m, name=name: OPTIMIZERS[name](m.parameters()), update=update)  # type: ignore[misc]
        for i in range(3):
            whole.step(i)
        file = io.BytesIO()
        torch.save((whole.model.state_dict(), whole.optimizer.state_dict()), file)
        for i in range(3, 6):
            whole.step(i)
        file.seek(0)
        weights, state = torch.load(file)
        again = dovetailed("mlp", lambda m, name=name: OPTIMIZERS[name](m.parameters()), update=update, **SLOW)  # type: ignore[misc]
        again.step(99)  # something to overwrite, still on its way
        again.model.load_state_dict(weights)
        again.optimizer.load_state_dict(state)
        alone = Mlp()
        alone.load_state_dict(weights)
        OPTIMIZERS[name](alone.parameters()).load_state_dict(state)  # plain torch can read it
        for i in range(3, 6):
            again.step(i)
        same(whole.model.state_dict(), again.model.state_dict())
        same_state(whole.optimizer, again.optimizer)
        shutdown(whole.model)
        shutdown(again.model)


def distributing_a_trained_optimizer() -> None:
    for update in filter(possible, ("worker", "hub")):
        sides = []
        for whole in (True, False):
            side = dovetailed("mlp", _sgd, update=update)
            side.step(0)
            if not whole:
                shutdown(side.model)
                assert "step" not in side.optimizer.__dict__
                assert not side.model._forward_pre_hooks
                distribute(side.model, side.optimizer, update=update)
            side.step(1)
            sides.append(side)
        same(sides[0].model.state_dict(), sides[1].model.state_dict())
        for side in sides:
            shutdown(side.model)


def weights_changed_by_hand() -> None:
    """With the update at the aggregator the values there must follow."""

    def loop(side: Side) -> None:
        side.step(0)
        with torch.no_grad():
            side.model.first.weight.clamp_(-0.05, 0.05)
        side.step(1)
        side.model.last.weight.data.mul_(0.5)
        side.step(2)
        side.model.middle.weight.data = side.model.middle.weight.data * 0.5
        side.step(3)

    for update in filter(possible, ("worker", "hub")):
        reference, side = ddp("mlp", _sgd), dovetailed("mlp", _sgd, update=update, **SLOW)
        loop(reference)
        loop(side)
        same(reference.model.state_dict(), side.model.state_dict())
        shutdown(side.model)


def stepping_on_local_gradients_is_refused() -> None:
    side = dovetailed("mlp", _sgd)
    with no_sync(side.model):
        side.loss(0).backward()
    _refused(Misuse, "no_sync", side.optimizer.step)
    side.optimizer.zero_grad()
    side.step(1)
    side.optimizer.zero_grad()
    for p in side.model.parameters():
        p.grad = torch.ones_like(p)
    _refused(Misuse, "by hand", side.optimizer.step)
    shutdown(side.model)


def thawed_and_added_parameters_are_refused() -> None:
    side = dovetailed("mlp", _sgd)
    side.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    _refused(Misuse, "joined", lambda: side.step(0))
    shutdown(side.model)

    def frozen(model: nn.Module) -> torch.optim.Optimizer:
        model.first.requires_grad_(False)
        return _sgd(model)

    side = dovetailed("mlp", frozen)
    side.model.first.requires_grad_(True)
    _refused(Misuse, "frozen", lambda: side.step(0))
    shutdown(side.model)


def sparse_gradients_are_refused() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    _refused(Misuse, "sparse=False", lambda: model(torch.tensor([1])).sum().backward())
    shutdown(model)


def parameters_of_another_form_are_refused() -> None:
    side = dovetailed("mlp", _sgd)
    side.step(0)
    side.optimizer.zero_grad()
    side.model.double()
    _refused(Misuse, "float64", lambda: side.call(torch.ones(2, 8, dtype=torch.float64)).sum().backward())
    shutdown(side.model)


def what_the_aggregator_cannot_do_is_refused() -> None:
    side = dovetailed("mlp", _sgd, update="hub")
    side.step(0)
    side.optimizer.zero_grad()
    side.loss(1).backward()
    nn.utils.clip_grad_norm_(side.model.parameters(), 0.01)
    _refused(Misuse, "update='worker'", side.optimizer.step)
    shutdown(side.model)

    side = dovetailed("mlp", _sgd, update="hub")
    side.loss(1).backward()
    side.optimizer.param_groups[0]["lr"] = 0.7
    _refused(Misuse, "hyperparameters", side.optimizer.step)
    shutdown(side.model)

    side = dovetailed("mlp", _sgd, update="hub")
    side.loss(1).backward()
    _refused(Misuse, "second backward", lambda: side.loss(2).backward())
    shutdown(side.model)

    model = build("mlp", 0)
    for optimizer in (torch.optim.Adagrad(model.parameters()), torch.optim.Adam(model.parameters(), amsgrad=True)):
        _refused(BadInput, "update='worker'", lambda o=optimizer: distribute(model, o, update="hub"))  # type: ignore[misc]


def different_models_are_refused() -> None:
    model = Mlp(96 + dist.get_rank())
    _refused(
        DovetailError, "rank 1 has parameter 'first.weight' float32[97, 8]", lambda: distribute(model, _sgd(model))
    )
    model = Mlp()
    if dist.get_rank() == 1:
        model.wave = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    word = "complex64" if dist.get_rank() == 1 else "rank 1 could not start"
    _refused(DovetailError, word, lambda: distribute(model, _sgd(model)))
    model = Mlp()
    one, other = ("fifo", "auto") if dist.get_rank() == 0 else ("p3", "p3")
    _refused(DovetailError, "policy 'fifo'", lambda: distribute(model, _sgd(model), policy=one))
    _refused(DovetailError, "policy 'auto'", lambda: distribute(model, _sgd(model), policy=other))


def bad_arguments_are_refused() -> None:
    model = Mlp()
    for word, options in (
        ("'sideways'", {"update": "sideways"}),
        ("'best'", {"policy": "best"}),
        ("hub", {"aggregation": "hub"}),
        ("'rings' is unknown; it is one of shuffle", {"aggregation": "rings"}),
        ("rack-hubs, auto", {"aggregation": "rings"}),
        ("127.0.0.1:1", {"hubs": ["127.0.0.1:1"], "options": Options(patience=1)}),
    ):
        _refused(DovetailError, word, lambda o=options: distribute(model, _sgd(model), **o))  # type: ignore[misc,arg-type]
    _refused(BadInput, "not distributed", lambda: shutdown(model))


def every_policy_trains_alike() -> None:
    for policy in policies():
        both(lambda side: [side.step(i) for i in range(4)], _sgd, network="transformer", policy=policy, update="worker")


def timelines_show_the_run() -> None:
    side = dovetailed("mlp", _sgd, trace=True, **SLOW)
    for i in range(4):
        side.step(i)
    mine = timeline(side.model)
    rank = dist.get_rank()
    assert mine.workers == (f"worker {rank}",)
    assert len(mine.iteration_times) == 4
    assert {"compute", "update", "wait", "send", "receive"} <= {span.lane for span in mine.spans}
    assert {"forward", "backward"} <= {span.name for span in mine.spans if span.lane == "compute"}
    sent = {span.iteration for span in mine.spans if span.lane == "send"}
    assert {0, 1, 2} <= sent <= {0, 1, 2, 3}, sent  # the last step may still be on its way
    every = gather_timeline(side.model)
    assert (every is None) == (rank != 0)
    if every is not None:
        assert every.workers == ("worker 0", "worker 1")
        assert every.iteration_time >= 0.05, "a rate of 0.4 MB/s cannot be that fast"
        assert abs(every.boundaries["worker 1"][0]) < 1
    shutdown(side.model)


def two_optimizers_of_one_model() -> None:
    model, twin = build("mlp", 0), build("mlp", 0)
    heads = torch.optim.SGD(model.last.parameters(), lr=0.1)
    rest = torch.optim.Adagrad([*model.first.parameters(), *model.middle.parameters()], lr=0.1)
    distribute(model, heads)
    distribute(model, rest)
    twins = [torch.optim.SGD(twin.last.parameters(), lr=0.1)]
    twins.append(torch.optim.Adagrad([*twin.first.parameters(), *twin.middle.parameters()], lr=0.1))
    wrapped = nn.parallel.DistributedDataParallel(twin)
    for i in range(3):
        x, y = batch("mlp", dist.get_rank(), i)
        for call, optimizers in ((model, [heads, rest]), (wrapped, twins)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            nn.functional.cross_entropy(call(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
    same(twin.state_dict(), model.state_dict())
    shutdown(model)


def two_models_as_in_a_gan() -> None:
    def train(make: Callable[[nn.Module, torch.optim.Optimizer], Callable[..., torch.Tensor]]) -> list[nn.Module]:
        torch.manual_seed(0)
        maker, judge = nn.Linear(4, 6), nn.Linear(6, 1)
        maker_step, judge_step = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (maker, judge))
        call_maker, call_judge = make(maker, maker_step), make(judge, judge_step)
        torch.manual_seed(dist.get_rank())
        for _ in range(3):
            noise, real = torch.randn(5, 4), torch.randn(5, 6)
            judge_step.zero_grad()
            (call_judge(torch.cat([call_maker(noise).detach(), real]))).square().mean().backward()
            judge_step.step()
            maker_step.zero_grad()
            call_judge(call_maker(noise)).mean().backward()
            maker_step.step()
        return [maker, judge]

    wanted = train(lambda model, _: nn.parallel.DistributedDataParallel(model))
    found = train(lambda model, optimizer: distribute(model, optimizer) and model)
    for one, two in zip(wanted, found, strict=True):
        same(one.state_dict(), two.state_dict())
        shutdown(two)


ALL = networks.scenarios(globals())
