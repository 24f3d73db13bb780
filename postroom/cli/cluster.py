"""The command cluster: nodes on this machine, for trying what a cluster does."""

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

from postroom.cli.state import nodes_table
from postroom.client.remote.nodes import Survey, survey
from postroom.errors import Error
from postroom.limits import LOCAL_NODES_MAX
from postroom.server.local_cluster import LocalCluster, LocalFolder, LocalNode

LOOK_SECONDS = 0.5


def cluster(
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=LOCAL_NODES_MAX, metavar="N", help="Run N nodes.", show_default="3"
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the data in DIR, to start the cluster again from there.",
            show_default="a temporary folder, removed at the end with all data",
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_000,
            metavar="PORT",
            help="Give the nodes ports from PORT on.",
            show_default="free ones",
        ),
    ] = None,
) -> None:
    """Run a cluster on this machine until Ctrl-C, for trying. Not for data that counts.

    Prints where to connect once all nodes serve. Kill a node to see what the others do: it is not
    started again. Without --path, all data is gone when it ends.
    """
    with contextlib.ExitStack() as stack:
        at = path
        if at is None:
            temporary = tempfile.TemporaryDirectory(prefix="postroom-cluster-")
            at = Path(stack.enter_context(temporary))
        folder = stack.enter_context(LocalFolder(at, nodes, base_port))
        with _interruptible():
            asyncio.run(_run(folder, logs_stay=path is not None))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, also before the event loop runs."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def _run(folder: LocalFolder, *, logs_stay: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    running = LocalCluster(folder)
    try:
        await _ClusterObserver(running, stopped).run()
    except _TooFewNodes as error:
        where = f"; its output is in {error.node.log}" if logs_stay else ""
        raise Error(f"{error}{where}") from None
    finally:
        await asyncio.to_thread(running.stop)


class _TooFewNodes(Exception):
    """An error when too many nodes have ended for the others to be of use."""

    def __init__(self, node: LocalNode, what: str) -> None:
        super().__init__(f"{what}: {_end_of(node)}; its last line is: {node.last_line()}")
        self.node = node


class _ClusterObserver:
    """The observer of a cluster, from its start until it shall stop."""

    def __init__(self, running: LocalCluster, stopped: asyncio.Event) -> None:
        self._running = running
        self._stopped = stopped
        self._random = random.Random(random.SystemRandom().randbytes(32))
        self._console = Console(soft_wrap=True)

    async def run(self) -> None:
        """Print that the cluster is ready, then report nodes that end."""
        while not await self._is_ready():
            if await self._stop_requested_within(LOOK_SECONDS / 5):
                return
        addresses = ",".join(self._running.addresses)
        self._console.print(f"ready: connect to {addresses} with --insecure")
        with contextlib.ExitStack() as stack:
            live: Live | None = None
            if self._console.is_terminal:
                live = stack.enter_context(Live(console=self._console, auto_refresh=False))
            while not await self._stop_requested_within(LOOK_SECONDS):
                self._report_ended_nodes(ready=True)
                if live is not None and (now := await self._survey()) is not None:
                    live.update(nodes_table(now), refresh=True)

    async def _is_ready(self) -> bool:
        """Return whether every node serves and knows the leader."""
        self._report_ended_nodes(ready=False)
        now = await self._survey()
        if now is None or now.leader is None:
            return False
        knowing = {n.address for n in now.nodes if n.status is not None and n.status.leader}
        is_ready = all(
            node.is_removed or (node.serves and node.address in knowing)
            for node in self._running.nodes
        )
        self._report_ended_nodes(ready=False)  # reports a node, too, that ended during the look
        return is_ready

    def _report_ended_nodes(self, *, ready: bool) -> None:
        for node in self._running.newly_dead():
            if not self._running.running:
                raise _TooFewNodes(node, "all nodes have ended")
            if not ready and not node.is_removed:
                raise _TooFewNodes(node, "the cluster was stopped before it was ready")
            self._console.print(f"{_end_of(node)}; its output is in {node.log}", markup=False)

    async def _survey(self) -> Survey | None:
        try:
            return await survey(self._running.addresses, None, None, self._random)
        except Error:  # no node answers: they are starting, or all are dead
            return None

    async def _stop_requested_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)
        return self._stopped.is_set()


def _end_of(node: LocalNode) -> str:
    return f"node {node.number} at {node.address} has ended, {node.how_it_ended()}"
