"""Connections that are carried to gRPC: none stays when one end has hung up."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.server.cluster import grpc_server
from postroom.server.cluster.connections import Connections
from postroom.server.cluster.formation import SelfDescription
from postroom.server.cluster.grpc_server import GrpcServer
from postroom.server.cluster.nodes_service import NodesService
from postroom.server.cluster.security import Security
from tests.server.cluster.streams import WAIT_SECONDS, store

LESS_THAN_MAKES_IT_WAIT = grpc_server.RELAY_BUFFER_BYTES // 2
MORE_THAN_BUFFERS_HOLD = 8 * 1024 * 1024


@pytest.fixture
def folder() -> Iterator[Path]:
    """The name of a unix socket must be short."""
    folder = Path(tempfile.mkdtemp(prefix="postroom-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("size", [LESS_THAN_MAKES_IT_WAIT, MORE_THAN_BUFFERS_HOLD])
def test_who_does_not_read_is_cut_off_when_grpc_has_hung_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The relay waited for ever until it hung up as well. And if there was much to read, the relay
    did not even hear that gRPC had: nothing was read from that meanwhile.
    """
    monkeypatch.setattr(grpc_server, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(grpc_server, "STALLED_SECONDS", 0.05)

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(size))
        writer.close()

    async def scenario() -> None:
        security = Security(None)
        nodes = NodesService(security, lambda: SelfDescription(store(1), (), None))
        server = GrpcServer(security, nodes)
        server._folder = folder
        listening = await asyncio.start_unix_server(speak, path=str(folder / grpc_server.SOCKET))
        caller, called = socket.socketpair()
        called.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        called.setblocking(False)
        connections = Connections(asyncio.get_running_loop().time)
        connection = connections.accept("caller", 1)
        assert connection is not None
        server.take(called, connection)
        connection.said_hello()
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*server._relays)
        assert len(connections) == 0
        assert server._callers == {}
        listening.close()
        await listening.wait_closed()
        caller.close()
        for _ in range(5):
            await asyncio.sleep(0)  # sockets that were cut off are closed a turn later

    asyncio.run(scenario())
