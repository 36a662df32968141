"""`dovetail hub`: serve jobs until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from dovetail.engine.address import DEFAULT_PORT, format_address, listen
from dovetail.engine.binding import make_engine
from dovetail.engine.hub import Hub
from dovetail.errors import BadInput
from dovetail.units import parse_rate


def register(app: typer.Typer) -> None:
    app.command("hub")(hub)


def hub(
    bind: str = typer.Option("0.0.0.0", help="Address of this machine to listen on."),
    port: int = typer.Option(DEFAULT_PORT, min=0, max=65535, help="Port; 0 takes a free one."),
    cores: int = typer.Option(1, min=1, max=1024, help="Threads that sum and update; use as many lanes in the jobs."),
    secret_file: Path | None = typer.Option(None, help="File with the secret that clients must know."),
    metrics_port: int | None = typer.Option(None, min=0, max=65535, help="Serve Prometheus metrics on /metrics here."),
    rate: str = typer.Option("0", help="Limit of what is sent, like 2gbit; 0 = none."),
    verbose: bool = typer.Option(False, help="Say on stderr who comes and goes."),
    json_file: str | None = typer.Option(None, "--json", help="Write the final counters here (- = stdout)."),
) -> None:
    """Sum gradients, update parameters and send them back, for any number of jobs.

    Example: `dovetail hub --port 7070 --secret-file hub.secret --metrics-port 9100`, and in each
    rank's environment `DOVETAIL_HUBS=thismachine:7070`.
    """
    if verbose:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    secret = _read_secret(secret_file)
    with listen(bind, port) as listener, contextlib.ExitStack() as stack:
        service = Hub(listener, make_engine(threads=cores, rate=parse_rate(rate)), secret=secret)
        where = format_address(bind, listener.getsockname()[1])
        notes = "" if secret else "; anyone who reaches this port can join (no --secret-file)"
        if metrics_port is not None:
            stack.callback(_metrics(service, bind, metrics_port))
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_serve(service, lambda: print(f"dovetail hub: ready on {where}{notes}", flush=True)))
        if json_file is not None:
            text = json.dumps(service.status().totals, indent=1) + "\n"
            sys.stdout.write(text) if json_file == "-" else Path(json_file).write_text(text)


async def _serve(service: Hub, ready: Callable[[], None]) -> None:
    task = asyncio.ensure_future(service.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    ready()
    await task


def _metrics(service: Hub, host: str, port: int) -> Callable[[], None]:
    from dovetail.engine.metrics import HubCollector, serve_metrics  # only then is prometheus-client loaded

    return serve_metrics(HubCollector(service.status), host=host, port=port)


def _read_secret(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"cannot read the secret file {path}: {why}") from None
    if not secret:
        raise BadInput(f"the secret file {path} is empty; write a secret into it, or leave --secret-file out")
    return secret
