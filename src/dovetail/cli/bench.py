"""`dovetail bench`: measure systems side by side on one network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.bench.allreduce import SYSTEMS as SUMMING
from dovetail.bench.allreduce import bench_allreduce
from dovetail.bench.autotune import Setup as AutotuneSetup
from dovetail.bench.autotune import bench_autotune
from dovetail.bench.grid import bench_grid, earlier, predicted_again
from dovetail.bench.models import published
from dovetail.bench.orders import Workload
from dovetail.bench.overhead import bench_overhead
from dovetail.bench.planning import bench_planning
from dovetail.bench.pull import ORDERS, bench_pull
from dovetail.bench.rank import bench_rank
from dovetail.bench.show import give, telling
from dovetail.bench.stage import Site
from dovetail.bench.systems import SYSTEMS as TRAINING
from dovetail.bench.systems import chosen
from dovetail.bench.train import Setup, bench_train
from dovetail.bench.urgent import bench_urgent
from dovetail.cli.output import write_json
from dovetail.errors import BadInput
from dovetail.units import parse_bytes, parse_rate, parse_seconds

Workers = Annotated[int, typer.Option(min=1, help="hosts that train")]
Rate = Annotated[str, typer.Option(help="of each host's link, both ways; 0 = unshaped")]
HubRate = Annotated[str | None, typer.Option(help="of the dedicated hub's link (default: workers x rate)")]
Racks = Annotated[int, typer.Option(help="racks the hosts stand in")]
Uplink = Annotated[str, typer.Option(help="of each rack's link to the other racks; 0 = unshaped")]
Shuffle = Annotated[bool, typer.Option("--shuffle-hosts", help="number hosts across racks at random")]
Seed = Annotated[int, typer.Option(help="of the shuffle")]
Model = Annotated[str, typer.Option(help="vgg19, resnet50, inception_v3, alexnet, gpt2, seq2seq, ...")]
Scale = Annotated[float, typer.Option(help="of the published parameter sizes")]
Systems = Annotated[str, typer.Option(help=f"what to compare, of {', '.join(TRAINING)}")]
Sums = Annotated[str, typer.Option(help=f"what to compare, of {', '.join(SUMMING)}")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="write the result; - = stdout")]


def register(app: typer.Typer) -> None:
    """Add the verb and its commands."""
    bench = typer.Typer(no_args_is_help=True, help="Measure training or all-reduce beside PyTorch DDP and Gloo.")
    for command in (train, grid, allreduce, rank, urgent, pull, overhead, planning, autotune):
        bench.command()(command)
    app.add_typer(bench, name="bench")


def train(
    model: Model = "vgg19",
    scale: Scale = 0.0625,
    workers: Workers = 4,
    rate: Rate = "500mbit",
    hub_rate: HubRate = None,
    compute: Annotated[str, typer.Option(help="seconds an iteration; 0 = none; real = a real small network")] = "1.0",
    systems: Systems = "ddp,sharded,hub",
    policy: Annotated[str, typer.Option(help="each of them a row of every dovetail system")] = "p3",
    predict: Annotated[bool, typer.Option("--predict", help="simulate each row as well")] = False,
    iters: Annotated[int, typer.Option(help="iterations that count, per system")] = 10,
    same_machines: Annotated[bool, typer.Option("--same-machines", help="hub: one worker fewer")] = False,
    racks: Racks = 1,
    uplink: Uplink = "0",
    shuffle_hosts: Shuffle = False,
    seed: Seed = 0,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="a folder for each system's timeline")] = None,
    json: Json = None,
) -> None:
    """Time an iteration of training with each system, beside what physics allows.

    Example: dovetail bench train --model vgg19 --compute 1.0 --systems ddp,sharded,hub --json result.json

    Example: dovetail bench train --policy tic,tac,p3,ibatch,fifo,bulk,dear,caramel,auto --predict
    """
    published(model)
    setup = Setup(
        workload=Workload(model=model, scale=scale, compute=None if compute == "real" else parse_seconds(compute)),
        systems=chosen(systems.split(","), policy.split(",")),
        site=_site(workers, rate, hub_rate, racks, uplink, seed if shuffle_hosts else None),
        iterations=iters,
        same_machines=same_machines,
        predict=predict,
    )
    with telling() as tell:
        result = bench_train(setup, tell=tell, save=save)
    give(result, json)


def grid(
    models: Annotated[str, typer.Option(help="of those of bench train")] = "vgg19,resnet50,inception_v3,gpt2",
    rates: Annotated[str, typer.Option(help="of each host's link, both ways")] = "125mbit,250mbit,500mbit",
    size: Annotated[str, typer.Option(help="that every model is scaled to")] = "6MiB",
    workers: Workers = 4,
    compute: Annotated[str, typer.Option(help="seconds an iteration")] = "0.3",
    systems: Systems = "ddp,sharded,auto",
    policy: Annotated[str, typer.Option(help="each of them a row of every dovetail system")] = "fifo,tac,p3,dear",
    iters: Annotated[int, typer.Option(help="iterations that count, per row")] = 4,
    turns: Annotated[int, typer.Option(help="that the systems take, with their share of the iterations each")] = 1,
    racks: Racks = 1,
    uplink: Uplink = "0",
    json: Json = None,
    add: Annotated[bool, typer.Option("--add", help="keep the other cells that the --json file already has")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="predict the cells of the --json file anew; measure nothing")
    ] = False,
) -> None:
    """Compare predicted with measured iteration times over models and rates, and `auto` with DDP.

    Example: dovetail bench grid --models vgg19,gpt2 --rates 250mbit,1gbit --json grid.json
    """
    if (add or again) and json in (None, "-"):
        raise BadInput("--add and --again need the file with cells from before; give --json FILE")
    names = models.split(",")
    for name in names:
        published(name)
    setup = Setup(
        workload=Workload(model=names[0], scale=1.0, compute=parse_seconds(compute)),
        systems=chosen(systems.split(","), policy.split(",")),
        site=_site(workers, "0", None, racks, uplink, None),
        iterations=iters,
        turns=turns,
        predict=True,
    )
    with telling() as tell:
        speeds, nbytes = [parse_rate(rate) for rate in rates.split(",")], parse_bytes(size)
        before = earlier(Path(json)) if (add or again) and json else ()
        if again:
            give(predicted_again(before, setup.systems), json)
            return
        for result in bench_grid(setup, models=names, rates=speeds, nbytes=nbytes, before=before, tell=tell):
            write_json(None if json == "-" else json, result)  # at once: a run of many minutes may be stopped
    give(result, json)


def allreduce(
    sizes: Annotated[str, typer.Option(help="of the tensor")] = "4KiB,1MiB,100MiB",
    systems: Sums = "gloo,sharded,hub",
    workers: Workers = 4,
    rate: Rate = "500mbit",
    hub_rate: HubRate = None,
    racks: Racks = 1,
    uplink: Uplink = "0",
    shuffle_hosts: Shuffle = False,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Time the sum of one tensor over all workers.

    Example: dovetail bench allreduce --sizes 4KiB,100MiB --systems gloo,sharded,hub
    """
    site = _site(workers, rate, hub_rate, racks, uplink, seed if shuffle_hosts else None)
    with telling() as tell:
        nbytes = [parse_bytes(size) for size in sizes.split(",")]
        result = bench_allreduce(site, sizes=nbytes, systems=systems.split(","), tell=tell)
    give(result, json)


def rank(
    size: Annotated[str, typer.Option(help="of the tensor")] = "16MiB",
    orders: Annotated[int, typer.Option(help="random orders")] = 20,
    times: Annotated[int, typer.Option(help="sums in each order")] = 3,
    workers: Workers = 8,
    rate: Rate = "500mbit",
    racks: Racks = 2,
    uplink: Uplink = "500mbit",
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Probe and group hosts in mixed racks, and time unmodified Gloo with ranks in the best, worst and random orders.

    Example: dovetail bench rank --workers 8 --racks 2 --uplink 500mbit
    """
    site = _site(workers, rate, None, racks, uplink, seed)
    with telling() as tell:
        result = bench_rank(site, nbytes=parse_bytes(size), orders=orders, times=times, seed=seed, tell=tell)
    give(result, json)


def urgent(
    rate: Rate = "500mbit",
    small: Annotated[str, typer.Option(help="the urgent chunk")] = "4KiB",
    large: Annotated[str, typer.Option(help="the transfer in its way")] = "100MiB",
    rounds: Annotated[int, typer.Option(help="large transfers in each order")] = 3,
    json: Json = None,
) -> None:
    """Time the most urgent chunk's way to the peer past a large transfer, with priorities and without.

    Example: dovetail bench urgent --rate 500mbit
    """
    with telling() as tell:
        speed, sizes = parse_rate(rate), (parse_bytes(small), parse_bytes(large))
        result = bench_urgent(rate=speed, small=sizes[0], large=sizes[1], rounds=rounds, tell=tell)
    give(result, json)


def pull(
    model: Model = "inception_v3",
    scale: Scale = 0.0625,
    clients: Annotated[int, typer.Option(min=1, help="inference agents that pull at once")] = 2,
    rate: Rate = "200mbit",
    hub_rate: Annotated[str | None, typer.Option(help="of the hub's link (default: clients x rate)")] = None,
    compute: Annotated[str, typer.Option(help="seconds of a forward pass")] = "0.3",
    orders: Annotated[str, typer.Option(help=f"of the pulls, of {', '.join(ORDERS)}")] = ",".join(ORDERS),
    rounds: Annotated[int, typer.Option(help="pulls in each order, per client")] = 5,
    json: Json = None,
) -> None:
    """Time clients that pull a model from a hub under their forward pass, from the first request to the pass's end.

    Example: dovetail bench pull --model inception_v3 --orders tac,random
    """
    workload = Workload(model=model, scale=scale, compute=parse_seconds(compute))
    published(model)
    with telling() as tell:
        site = _site(clients, rate, hub_rate, 1, "0", None)
        result = bench_pull(site, workload, orders=orders.split(","), rounds=rounds, tell=tell)
    give(result, json)


def overhead(
    workers: Workers = 2,
    params: Annotated[int, typer.Option(help="parameters of the network, all small")] = 200,
    step: Annotated[str, typer.Option(help="seconds of a step")] = "0.2",
    rounds: Annotated[int, typer.Option(help="turns of each kind")] = 60,
    steps: Annotated[int, typer.Option(help="steps in a turn")] = 2,
    json: Json = None,
) -> None:
    """Compare steps of a compute-bound network with and without dovetail, in the same processes in turns.

    Example: dovetail bench overhead --params 200 --step 0.2
    """
    with telling() as tell:
        seconds = parse_seconds(step)
        result = bench_overhead(workers=workers, params=params, step=seconds, rounds=rounds, steps=steps, tell=tell)
    give(result, json)


def planning(json: Json = None) -> None:
    """Time `auto`, TAC and the simulator on large models and clusters, without a network.

    Example: dovetail bench planning
    """
    with telling() as tell:
        result = bench_planning(tell=tell)
    give(result, json)


def autotune(
    model: Model = "vgg19",
    scale: Scale = 0.01,
    workers: Workers = 8,
    rate: Rate = "200mbit",
    compute: Annotated[str, typer.Option(help="seconds an iteration")] = "0",
    cut: Annotated[float, typer.Option(help="what is left of one host's rate")] = 0.4,
    steps: Annotated[int, typer.Option(help="steps after each change")] = 36,
    grace: Annotated[int, typer.Option(help="steps in which training may recover")] = 25,
    json: Json = None,
) -> None:
    """Cut one host's link in mid-training and restore it, beside the best fixed schedule for each state.

    Example: dovetail bench autotune --workers 8 --rate 200mbit --cut 0.4
    """
    published(model)
    setup = AutotuneSetup(
        workload=Workload(model=model, scale=scale, compute=parse_seconds(compute)),
        site=_site(workers, rate, None, 1, "0", None),
        cut=cut,
        steps=steps,
        grace=grace,
    )
    with telling() as tell:
        result = bench_autotune(setup, tell=tell)
    give(result, json)


def _site(workers: int, rate: str, hub_rate: str | None, racks: int, uplink: str, shuffle_seed: int | None) -> Site:
    return Site(
        workers=workers,
        rate=parse_rate(rate),
        hub_rate=None if hub_rate is None else parse_rate(hub_rate),
        racks=racks,
        uplink=parse_rate(uplink),
        shuffle_seed=shuffle_seed,
    )
