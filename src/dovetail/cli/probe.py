"""`dovetail probe`: latency and bandwidth of every pair of hosts become probe.json and a heat map."""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from dovetail import codec
from dovetail.cli.output import write_json
from dovetail.errors import BadInput, Unreachable
from dovetail.network.hostfile import read_hosts
from dovetail.network.measure import route_address
from dovetail.units import parse_bytes

STORE_PORT = 29617
MEETING = timedelta(seconds=120)  # how long hosts wait for each other


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
    from torch._C._distributed_c10d import PrefixStore, TCPStore  # only now is torch loaded

    from dovetail.network.draw import probe_page
    from dovetail.network.group import group_hosts
    from dovetail.network.probe import Effort, probe_all

    effort = Effort(echoes=echoes, bulk=parse_bytes(bulk))
    me, names, master, meeting = _from_list(hosts, rank, port) if hosts else _from_environment()
    serves = me == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = PrefixStore("dovetail-probe", TCPStore(master, meeting, None, serves, MEETING))
        address = route_address(master, meeting)
        if names is None:
            world = int(os.environ["WORLD_SIZE"])
            store.set(f"name/{me}", f"{socket.gethostname()} {address}")
            told = [store.get(f"name/{r}").decode().split() for r in range(world)]
            same = len({name for name, _ in told}) < world
            names = tuple(at if same else name for name, at in told)
            names = names if len(set(names)) == world else tuple(f"{n}/{r}" for r, n in enumerate(names))
        with Progress(console=Console(stderr=True), disable=me != 0, transient=True) as bar:
            task = bar.add_task(f"probing {len(names)} hosts")
            matrix = probe_all(
                store,
                rank=me,
                hosts=names,
                address=address,
                effort=effort,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except RuntimeError as error:  # torch's store errors are RuntimeErrors
        raise Unreachable(f"lost the other hosts at {master}:{meeting}: {str(error).splitlines()[0]}") from None
    if me:
        return
    codec.save(matrix, output)
    grouping = group_hosts(matrix)
    if html is not None:
        html.write_text(probe_page(matrix, grouping))
    named = [[matrix.hosts[node] for node in members] for members in grouping.groups]
    for number, members in enumerate(named):
        print(f"group {number}: {' '.join(members)}", file=sys.stderr if json == "-" else sys.stdout)
    write_json(json, {"matrix": matrix, "groups": named, "clarity": grouping.clarity})


def _from_list(path: Path, rank: int | None, port: int) -> tuple[int, tuple[str, ...], str, int]:
    """This host's rank, all names, and where to meet."""
    names = read_hosts(path).hosts
    if rank is None:
        mine = {socket.gethostname(), socket.getfqdn(), route_address(names[0], port)}
        rank = next((r for r, name in enumerate(names) if name in mine), None)
    if rank is None or not 0 <= rank < len(names):
        raise BadInput(f"which line of {path} is this host ({socket.gethostname()})? give --rank 0..{len(names) - 1}")
    return rank, names, names[0], port


def _from_environment() -> tuple[int, None, str, int]:
    """The same from what torchrun sets; names are exchanged later."""
    try:
        return int(os.environ["RANK"]), None, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise BadInput(f"no host list, and no job of torchrun ({error}); give one, or start under torchrun") from None
