"""Training over a `dovetail hub` process: both places of the update, the environment, and a hub that dies."""

from __future__ import annotations

import torch
from harness import ranks, reach
from networks import OPTIMIZERS, Side, build, ddp, dovetailed, same, same_state
from nodes import hub

from dovetail.errors import PeerLost, Refused
from dovetail.training import distribute, shutdown
from dovetail.training.distribute import _running


def _place(side: Side) -> bool:
    return _running[side.model][0].job.update.remote


def train_both_ways(rank: int, size: int) -> dict[str, bool]:
    """Over the hub of DOVETAIL_HUBS; which jobs had their update there."""
    places = {}
    for update, name in (("auto", "sgd"), ("worker", "adamw"), ("auto", "adagrad")):
        make = lambda model, name=name: OPTIMIZERS[name](model.parameters())  # noqa: E731
        reference, side = ddp("cnn", make), dovetailed("cnn", make, update=update)
        assert [reference.step(i) for i in range(8)] == [side.step(i) for i in range(8)]
        same(reference.model.state_dict(), side.model.state_dict())
        same_state(reference.optimizer, side.optimizer)
        places[f"{update} {name}"] = _place(side)
        shutdown(side.model)
    return places


def test_hub_found_in_the_environment_trains_like_ddp() -> None:
    with hub() as server, ranks(2, train_both_ways, gloo=True, env={"DOVETAIL_HUBS": server.address}) as group:
        for places in group.results(120):
            assert places == {"auto sgd": True, "worker adamw": False, "auto adagrad": False}


def join_without_secret(rank: int, size: int, address: str) -> None:
    model = build("mlp", 0)
    distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), hubs=[address])


def test_wrong_secret_is_one_clear_line_before_training(tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    with hub("--secret-file", str(secret)) as server:
        with ranks(2, join_without_secret, gloo=True, args=(server.address,)) as group:
            assert group.errors(within=60) == {0: Refused, 1: Refused}
            assert all("secret" in message and "\n" not in message for message in group.messages().values())
        with ranks(
            2, train_a_little, gloo=True, args=(server.address,), env={"DOVETAIL_SECRET_FILE": str(secret)}
        ) as group:
            group.results(60)


def train_a_little(rank: int, size: int, address: str) -> None:
    side = dovetailed("mlp", lambda model: torch.optim.SGD(model.parameters(), lr=0.1), hubs=[address])
    side.step(0)
    side.step(1)
    shutdown(side.model)


def train_forever(rank: int, size: int, hubs: list[str], update: str) -> None:
    side = dovetailed("mlp", lambda model: OPTIMIZERS["sgd"](model.parameters()), hubs=hubs, update=update)
    step = 0
    while True:
        side.step(step)
        step += 1
        if step == 20:
            reach("training")


def test_a_killed_hub_is_named_in_seconds() -> None:
    with hub() as server, ranks(2, train_forever, gloo=True, args=([server.address], "hub")) as group:
        group.wait_for("training", within=60)
        server.kill()
        assert group.errors(within=5) == {0: PeerLost, 1: PeerLost}
        assert all(server.address in message for message in group.messages().values())


def test_a_killed_rank_is_named_in_seconds() -> None:
    with ranks(3, train_forever, gloo=True, args=([], "worker")) as group:
        group.wait_for("training", within=60)
        group.kill(1)
        assert group.errors(within=5) == {0: PeerLost, 2: PeerLost}
        assert all("rank 1 at " in message and "step" in message for message in group.messages().values())
