"""The command cluster: some nodes on this machine, for trying what a cluster does."""

from __future__ import annotations

import asyncio
import contextlib
import random  # noqa: TID251 - here instances are made, to be passed in
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from postroom.client.remote.survey import Survey, survey
from postroom.errors import Error
from postroom.server.commands.options import quiet_grpc
from postroom.server.commands.state import nodes_table
from postroom.server.local_cluster import LocalCluster, check_installed, choose_ports

LOOK_SECONDS = 0.5
NODES_MAX = 9


def cluster(
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=NODES_MAX, metavar="N", help="How many.", show_default="3"),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep it in DIR, to start it again from there.",
            show_default="a temporary folder",
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65_000, metavar="PORT", help="The first port.", show_default="free ones"
        ),
    ] = None,
) -> None:
    """Run a cluster on this machine until Ctrl-C, for trying. Not for data that counts.

    Prints where to connect once all nodes serve. Kill a node to see what the others do: it is not
    started again.
    """
    check_installed()
    quiet_grpc()
    with contextlib.ExitStack() as stack:
        if path is None:
            temporary = tempfile.TemporaryDirectory(prefix="postroom-cluster-")
            path = Path(stack.enter_context(temporary))
        ports = choose_ports(path, nodes, base_port)
        with _interruptible():
            asyncio.run(_run(path, ports))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, also before the event loop runs."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def _run(folder: Path, ports: list[int]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    running = LocalCluster(folder, ports)
    try:
        await _watch(running, stopped)
    finally:
        await asyncio.to_thread(running.stop)


async def _watch(running: LocalCluster, stopped: asyncio.Event) -> None:
    randomness = random.Random(random.SystemRandom().randbytes(32))
    console, ready = Console(soft_wrap=True), False
    with contextlib.ExitStack() as stack:
        live: Live | None = None
        while not stopped.is_set():
            for node in running.newly_dead():
                console.print(
                    f"node {node.number} at {node.address} has ended, {node.how_it_ended()}; what "
                    f"it wrote is in {node.log}",
                    markup=False,
                )
            if not running.running:
                raise Error("all nodes have ended")
            now = await _look(running, randomness)
            if not ready and now is not None and _is_ready(now, len(running.nodes)):
                ready = True
                console.print(f"ready: connect to {','.join(running.addresses)} with --insecure")
                if console.is_terminal:
                    live = stack.enter_context(Live(console=console, auto_refresh=False))
            if live is not None and now is not None:
                live.update(nodes_table(now), refresh=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK_SECONDS if ready else LOOK_SECONDS / 5)


async def _look(running: LocalCluster, randomness: random.Random) -> Survey | None:
    try:
        return await survey(running.addresses, None, None, randomness)
    except Error:  # nobody answers: they are starting, or all are dead
        return None


def _is_ready(now: Survey, count: int) -> bool:
    serving = [each for each in now.nodes if each.status is not None and each.status.leader]
    return now.leader is not None and len(serving) >= count
