"""`dovetail rank`: the order of hosts in which an unmodified collective is cheapest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail import codec
from dovetail.errors import BadInput
from dovetail.network.collective import algorithm_name
from dovetail.network.hostfile import read_hosts
from dovetail.network.matrix import ProbeMatrix
from dovetail.network.ranking import best_ranking
from dovetail.units import parse_bytes, parse_seconds


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
    found = best_ranking(costs, algorithm=name, size=nbytes, base=base, time_limit=parse_seconds(time_limit), seed=seed)
    text = listed.reordered(found.order)
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
        typer.echo(str(found), err=output is None)
