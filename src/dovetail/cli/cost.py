"""`dovetail cost`: what hosts need, what a rack costs, and whether a hub in each rack pays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dovetail import codec
from dovetail.network.cost import (
    DEPLOYMENTS,
    EFFICIENCY,
    WORKERS_PER_HUB,
    PriceList,
    hierarchy,
    host_bandwidth,
    per_thousand,
)
from dovetail.units import format_rate, parse_bytes, parse_rate, parse_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """All answers: bytes per second, samples per second and 1000 dollars, seconds per byte."""

    bandwidth: dict[str, float]  # deployment -> what the busiest host needs
    throughput_per_1000: dict[str, float]
    flat: float
    hierarchical: float
    hierarchy_pays: bool


PLACES = {
    "CC": "one server beside the workers",
    "CS": "a shard of it beside each worker",
    "NCC": "one server on a host of its own",
    "NCS": "as many such hosts as workers",
}


def register(app: typer.Typer) -> None:
    app.command("cost")(cost)


def cost(
    model: Annotated[str, typer.Option(help="Size of the model.")] = "97MB",
    iteration: Annotated[str, typer.Option(help="Compute time of an iteration.")] = "161ms",
    workers: Annotated[int, typer.Option(help="Workers, for the bandwidth a host needs.")] = 8,
    sharded: Annotated[float, typer.Option(help="Samples/s of a worker, sharded servers, fast network.")] = 557.0,
    hub: Annotated[float, typer.Option(help="Samples/s of a worker with a hub, slow network, one rack.")] = 565.0,
    prices: Annotated[Path | None, typer.Option(help="Price list to use instead of the built-in one of 2018.")] = None,
    save_prices: Annotated[Path | None, typer.Option(help="Write the price list here, to edit.")] = None,
    racks: Annotated[int, typer.Option(help="Racks, for the question of hierarchy.")] = 2,
    per_rack: Annotated[int, typer.Option(help="Workers in each rack.")] = 8,
    core: Annotated[str, typer.Option(help="Bandwidth between racks.")] = "10gbit",
    hub_rate: Annotated[str, typer.Option(help="Bandwidth of a hub, all its interfaces.")] = "100gbit",
    worker_rate: Annotated[str, typer.Option(help="Bandwidth of a worker.")] = "10gbit",
    json: Annotated[str | None, typer.Option(help="Write the answers here as JSON; - is standard output.")] = None,
) -> None:
    """Bandwidth a host needs, throughput for money with and without hubs, and when a hub in each rack pays.

    Example: dovetail cost --model 548MB --iteration 268ms --workers 16 --racks 4 --core 40gbit
    """
    size, seconds = parse_bytes(model), parse_seconds(iteration)
    table = codec.load(PriceList, prices) if prices else PriceList()
    if save_prices:
        codec.save(table, save_prices)
    worth = {"sharded 1:1": per_thousand(sharded, table.sharded_worker())}
    for over, count in WORKERS_PER_HUB.items():
        dollars = table.hub_worker(oversubscription=over, workers_per_hub=count)
        worth[f"hub {over}:1"] = per_thousand(hub * EFFICIENCY, dollars)
    rates = {"core": parse_rate(core), "hub": parse_rate(hub_rate), "worker": parse_rate(worker_rate)}
    verdict = hierarchy(per_rack=per_rack, racks=racks, **rates)
    report = CostReport(
        bandwidth={
            d: host_bandwidth(model_bytes=size, iteration=seconds, workers=workers, deployment=d) for d in DEPLOYMENTS
        },
        throughput_per_1000=worth,
        flat=verdict.flat,
        hierarchical=verdict.hierarchical,
        hierarchy_pays=verdict.pays,
    )
    if json is not None:
        codec.save(report, json)
    if json != "-":
        typer.echo(_text(report, workers, racks, per_rack))


def _text(report: CostReport, workers: int, racks: int, per_rack: int) -> str:
    lines = [f"Bandwidth the host of a server needs, in and out, with {workers} workers:"]
    lines += [f"  {f'{name}, {PLACES[name]}':<46} {format_rate(rate):>12}" for name, rate in report.bandwidth.items()]
    lines += ["Samples per second for each 1000 dollars:"]
    lines += [f"  {name:<12} {worth:>12.2f}" for name, worth in report.throughput_per_1000.items()]
    word = "pays" if report.hierarchy_pays else "does not pay"
    lines.append(
        f"A hub in each of {racks} racks of {per_rack} {word}: {report.flat * 1e9:.3g} s a GB across the core without, "
        f"{report.hierarchical * 1e9:.3g} s a GB with it."
    )
    return "\n".join(lines)
