"""`dovetail rank`: the order of hosts in which an unmodified collective is cheapest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from dovetail import codec
from dovetail.errors import BadInput
from dovetail.network.collective import Prices, algorithm_name, cost_model
from dovetail.network.hostfile import read_hosts
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.rank_order import rank_order
from dovetail.units import format_seconds, parse_bytes, parse_seconds

RANDOM_ORDERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """The order found, and what the collective is predicted to cost in it and in others (seconds)."""

    algorithm: str
    hosts: tuple[str, ...]  # by rank
    order: tuple[int, ...]  # rank -> line of the host list, from 0
    cost: float
    given: float
    random: float  # mean of many random orders


def register(app: typer.Typer) -> None:
    app.command("rank")(rank)


def rank(
    hosts: Annotated[Path, typer.Argument(help="One host per line; what follows its name is kept.")],
    algorithm: Annotated[str, typer.Option(help="ring, ring-bottleneck, hd, tree or bcube.")] = "ring",
    size: Annotated[str, typer.Option(help="Buffer that is reduced, such as 100MiB.")] = "100MiB",
    matrix: Annotated[Path, typer.Option(help="What `dovetail probe` wrote.")] = Path("probe.json"),
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where the new list goes.")] = None,
    base: Annotated[int, typer.Option(help="Base of bcube.")] = 4,
    time_limit: Annotated[str, typer.Option(help="How long to search at most.")] = "10s",
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    json: Annotated[str | None, typer.Option(help="Write the result here as JSON; - is standard output.")] = None,
) -> None:
    """Order the hosts of a job so that its collectives use the fast links.

    Example: dovetail rank --algorithm ring --size 100MiB --matrix probe.json hosts.txt -o hosts.reordered
    """
    name, nbytes, listed = algorithm_name(algorithm), parse_bytes(size), read_hosts(hosts)
    if not matrix.exists():
        raise BadInput(f"no matrix at {matrix}; measure it with `dovetail probe {hosts} -o {matrix}`")
    costs = codec.load(ProbeMatrix, matrix).only(listed.hosts)
    order = rank_order(costs, name, size=nbytes, base=base, time_limit=parse_seconds(time_limit), seed=seed)
    count, rng = len(order), np.random.default_rng(seed)
    tried = np.array([order, range(count), *(rng.permutation(count) for _ in range(RANDOM_ORDERS))], dtype=np.intp)
    prices = cost_model(Prices(costs), algorithm=name, size=nbytes, base=base)(tried)[0]
    found = RankOrder(
        algorithm=name,
        hosts=tuple(listed.hosts[node] for node in order),
        order=tuple(order),
        cost=float(prices[0]),
        given=float(prices[1]),
        random=float(prices[2:].mean()),
    )
    text = listed.reordered(order)
    if output is not None:
        try:
            output.write_text(text)
        except OSError as error:
            raise BadInput(f"cannot write {output}: {error.strerror}") from None
    if json is not None:
        codec.save(found, json)
    if json != "-":
        if output is None:
            typer.echo(text, nl=False)
        typer.echo(_summary(found), err=output is None)


def _summary(found: RankOrder) -> str:
    """One line: predicted cost, and the gain over the given order and over a random one."""
    gains = [f"{other / found.cost:.2f}x" if found.cost else "1.00x" for other in (found.given, found.random)]
    return (
        f"{found.algorithm}, {len(found.hosts)} hosts: predicted {format_seconds(found.cost)}; "
        f"{gains[0]} faster than the given order, {gains[1]} than a random one"
    )
