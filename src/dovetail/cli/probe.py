"""`dovetail probe`: latency and bandwidth of every pair of hosts become probe.json and a heat map."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dovetail import codec
from dovetail.cli.output import write_json
from dovetail.errors import BadInput, DovetailError, Unreachable
from dovetail.network.hostfile import read_hosts, read_places
from dovetail.network.measure import route_address
from dovetail.units import parse_bytes

STORE_PORT = 29617


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("probe")(probe)


def probe(
    hosts: Annotated[Path | None, typer.Argument(help="host list; without it, the ranks of torchrun")] = None,
    rank: Annotated[
        int | None, typer.Option(help="this host's line in the list, from 0, if its name does not tell")
    ] = None,
    port: Annotated[int, typer.Option(help="where the first host of the list meets the others")] = STORE_PORT,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="the matrix")] = Path("probe.json"),
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="heat maps and groups as a page")] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="where hosts stand, as `host row rack`: says the accuracy")
    ] = None,
    bulk: Annotated[str, typer.Option(help="bytes each way for bandwidth; 0 = latency only")] = "4MiB",
    echoes: Annotated[int, typer.Option(help="round trips for latency")] = 300,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="matrix and groups; - = stdout")] = None,
) -> None:
    """Measure the latency and bandwidth of every pair of hosts; run it on all of them at once.

    Under torchrun: torchrun --nnodes 8 --nproc-per-node 1 ... -m dovetail.cli.main probe --html probe.html

    With a host list: dovetail probe hosts.txt    (on each host, for instance by pdsh or mpirun)
    """
    from rich.console import Console
    from rich.progress import Progress

    from dovetail.network.probe import Effort, passes_for, probe_all
    from dovetail.training.launch import Place, launched, open_store  # only now is torch loaded

    effort = Effort(echoes=echoes, bulk=parse_bytes(bulk))  # bad numbers are told before anybody meets
    if truth is not None:
        read_hosts(truth)  # a mistake in it must not wait for the probe's end
    names = read_hosts(hosts).hosts if hosts else ()
    if names:
        mine = _line_of_this_host(names, rank, port, str(hosts))
        place = Place(rank=mine, world=len(names), local_rank=0, master=names[0], port=port)
    else:
        place = launched(os.environ)
    me, address = place.rank, route_address(place.master, place.port)
    store, _ = open_store(place, serve=me == 0 and not place.agent_store, prefix="dovetail-probe")
    try:
        if not names:
            store.set(f"name/{me}", f"{socket.gethostname()} {address}")
            told = [store.get(f"name/{r}").decode().split() for r in range(place.world)]
            same = len({name for name, _ in told}) < place.world
            names = tuple(at if same else name for name, at in told)
            names = names if len(set(names)) == place.world else tuple(f"{n}/{r}" for r, n in enumerate(names))
        with Progress(console=Console(stderr=True), disable=me != 0, transient=True) as bar:
            task = bar.add_task(f"probing {len(names)} hosts")
            matrix = probe_all(
                store,
                rank=me,
                hosts=names,
                address=address,
                effort=replace(effort, passes=passes_for(len(names))),
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except RuntimeError as error:  # torch's store errors are RuntimeErrors
        if isinstance(error, DovetailError):
            raise
        lost = f"lost the other hosts at {place.master}:{place.port}"
        raise Unreachable(f"{lost}: {str(error).splitlines()[0]}") from None
    if me:
        return
    from dovetail.network.draw import probe_page  # k-means and plotly, which only the first host needs
    from dovetail.network.embed import accuracies
    from dovetail.network.group import group_hosts

    codec.save(matrix, output)
    accuracy = None if truth is None else accuracies(matrix, read_places(truth, matrix.hosts))
    grouping = group_hosts(matrix)
    if html is not None:
        html.write_text(probe_page(matrix, grouping))
    named = [[matrix.hosts[node] for node in members] for members in grouping.groups]
    lines = [f"group {number}: {' '.join(members)}" for number, members in enumerate(named)]
    lines += [
        f"near hosts told from far ones (PAIA) by {what}: {raw:.1%}, on the map {embedded:.1%}"
        for what, (raw, embedded) in (accuracy or {}).items()
    ]
    print("\n".join(lines), file=sys.stderr if json == "-" else sys.stdout)
    write_json(json, {"matrix": matrix, "groups": named, "clarity": grouping.clarity, "accuracy": accuracy})


def _line_of_this_host(names: tuple[str, ...], rank: int | None, port: int, source: str) -> int:
    if rank is None:
        # By its name up to the first dot: asking for the full one can take minutes where there is no name service.
        own = socket.gethostname().partition(".")[0]
        mine = {own, route_address(names[0], port)}
        rank = next((r for r, name in enumerate(names) if mine & {name, name.partition(".")[0]}), None)
    if rank is None or not 0 <= rank < len(names):
        raise BadInput(f"which line of {source} is this host ({socket.gethostname()})? give --rank 0..{len(names) - 1}")
    return rank
