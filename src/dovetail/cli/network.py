"""`dovetail network`: links as measured or described become cluster.json."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from dovetail import codec
from dovetail.cli.output import write_json
from dovetail.errors import BadInput, Unreachable
from dovetail.network.describe import describe, worker_links
from dovetail.network.measure import Pair, host_links, measure_pairs, route_address
from dovetail.network.model import Cluster, Link
from dovetail.units import format_count, format_rate, format_seconds, parse_rate, parse_seconds


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("network")(network)


def network(
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="the cluster")] = "cluster.json",
    workers: Annotated[int | None, typer.Option(min=1, help="describe this many workers")] = None,
    rate: Annotated[str | None, typer.Option(help="of a worker's link; a,b,c,... gives each its own")] = None,
    startup: Annotated[str, typer.Option(help="time a transfer costs before its first byte")] = "50us",
    hubs: Annotated[int, typer.Option(min=0, help="dedicated hubs")] = 0,
    hub_rate: Annotated[str | None, typer.Option(help="of a hub in all (default: all workers' together)")] = None,
    interfaces: Annotated[int, typer.Option(min=1, help="of a hub, which share its rate")] = 1,
    racks: Annotated[int, typer.Option(min=1, help="racks the workers fill evenly")] = 1,
    oversubscription: Annotated[float, typer.Option(help="workers' bandwidth over their rack's uplink's")] = 1.0,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="the findings; - = stdout")] = None,
) -> None:
    """Measure the links between the ranks of a job, or describe a cluster by hand.

    Measure: dovetail lab run --hosts 4 --rate 500mbit -- dovetail network -o cluster.json

    Describe: dovetail network --workers 4 --rate 500mbit --startup 50us --hubs 1 --hub-rate 2gbit -o cluster.json
    """
    pairs: tuple[Pair, ...] = ()
    if workers is not None and rate is not None:
        links = worker_links(workers, [parse_rate(part) for part in rate.split(",")], parse_seconds(startup))
    elif workers is None and rate is None:
        rank, links, pairs = _measured()
        if rank:
            return
    else:
        raise BadInput("a described cluster needs both --workers and --rate; a measured one takes neither")
    cluster = describe(
        links,
        hubs=hubs,
        hub_rate=None if hub_rate is None else parse_rate(hub_rate),
        interfaces=interfaces,
        racks=racks,
        oversubscription=oversubscription,
    )
    codec.save(cluster, output)
    shown = sys.stderr if "-" in (output, json) else sys.stdout
    for pair in pairs:
        print(
            f"worker {pair.first} - worker {pair.second}: {format_rate(pair.link.bandwidth)}, startup "
            f"{format_seconds(pair.link.startup)}, error of the fit {pair.error:.1%}",
            file=shown,
        )
    if output != "-":
        print(f"{output}: {_words(cluster)}", file=shown)
    write_json(json, {"network": cluster, "pairs": pairs})


def _words(cluster: Cluster) -> str:
    """What is in the file: `4 workers at 500 Mbit/s, 1 hub, 2 racks`."""
    slowest, fastest = cluster.slowest.bandwidth, max(host.link.bandwidth for host in cluster.workers)
    rates = format_rate(slowest) + (f" to {format_rate(fastest)}" if fastest > slowest else "")
    words = [f"{format_count(len(cluster.workers), 'worker')} at {rates}"]
    words += [format_count(len(cluster.hubs), "hub")] if cluster.hubs else []
    racks = len({host.rack for host in cluster.workers})
    return ", ".join([*words, *([f"{racks} racks"] if racks > 1 else [])])


def _measured() -> tuple[int, tuple[Link, ...], tuple[Pair, ...]]:
    """This rank's number, every worker's link, and the pairs they come from."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise BadInput(
            f"{missing[0]} is not set, so there is no job to measure; start this under torchrun or `dovetail lab run`, "
            "or describe the cluster with --workers and --rate"
        )
    try:
        rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError as error:
        raise BadInput(f"RANK, WORLD_SIZE and MASTER_PORT must be numbers: {error}") from None
    host = os.environ["MASTER_ADDR"]
    from torch._C._distributed_c10d import PrefixStore, TCPStore  # only then is torch loaded

    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(host, port, world, serves, wait_for_workers=False)
    except RuntimeError as error:  # torch's store errors are RuntimeErrors
        raise Unreachable(f"cannot meet the other ranks at {host}:{port}: {str(error).splitlines()[0]}") from None
    prefixed = PrefixStore("dovetail-network", store)
    pairs = measure_pairs(prefixed, rank=rank, world=world, host=route_address(host, port))
    return rank, host_links(pairs, world), pairs
