"""The cost of a client that is let in, says who it is, and wants nothing."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.client.remote.native import offering_native
from postroom.protocol import frames
from postroom.protocol.streams import Opening, framed, opening_bytes
from tests.attacks.node_process import NodeProcess, node_process
from tests.remote.client_names import secret_of

CLIENTS = 200
IDLE_TLS_BYTES = 64 * 1024


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with node_process(tmp_path, secure=True) as node:
        yield node


def _idle_client(node: NodeProcess, number: int) -> ssl.SSLSocket:
    """Return a client over TLS that was welcomed."""
    assert node.tls is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(node.tls.ca)
    context.load_cert_chain(str(node.tls.certificate), str(node.tls.key))
    offering_native(context)
    host, _, port = node.address.rpartition(":")
    connected = context.wrap_socket(
        socket.create_connection((host, int(port))), server_hostname=host
    )
    hello = frames.encode((0, frames.PROTOCOL_VERSION, secret_of(b"%d" % number), 1))
    connected.sendall(opening_bytes(Opening("talk", b"", None)) + framed(hello))
    received = b""
    while len(received) < 40:  # it is let in, and welcomed
        received += connected.recv(1000)
    return connected


def test_an_idle_tls_client_costs_little_memory(node: NodeProcess) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(20):
            stack.enter_context(_idle_client(node, number))
        before = node.memory_bytes()
        for number in range(20, 20 + CLIENTS):
            stack.enter_context(_idle_client(node, number))
        each = (node.memory_bytes() - before) / CLIENTS
    assert each < IDLE_TLS_BYTES, f"{each / 1024:.0f} KiB"
