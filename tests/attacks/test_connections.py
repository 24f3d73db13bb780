"""Connections that cost a node more than they cost those who open them."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.client.remote.native import offering_native
from postroom.protocol import frames, streams
from postroom.protocol.streams import PREAMBLE, Opening, framed
from postroom.server.cluster import admission, native_server
from postroom.server.cluster.intake import Unfinished
from postroom.server.cluster.security import Security
from tests.attacks.node_process import NodeProcess, bear_a_storm, node_process
from tests.remote.client_names import secret_of
from tests.server.cluster.certificates import Authority
from tests.server.cluster.streams import Talker, cluster, until

IDLE = 1100
"""The number of connections: more than a node of these tests has descriptors."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise this process's limit of descriptors, for the attacker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * IDLE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"an attacker needs {wanted} descriptors, the system gives {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(params=["insecure", "with TLS"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NodeProcess]:
    with node_process(tmp_path, secure=request.param == "with TLS") as running:
        yield running


def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def write_files(db: postroom.Database) -> None:
    """Write more than storage holds in memory, so that it opens files."""
    for number in range(160):
        db.put(b"large/%d" % number, bytes(64 * 1024))


def test_idle_connections_end_no_node(node: NodeProcess, many_descriptors: None) -> None:
    with node.connect() as db, contextlib.ExitStack() as stack:
        db.put(b"before", b"1")
        idle = [stack.enter_context(connected(node.address)) for _ in range(IDLE)]
        write_files(db)
        with node.connect() as another:
            assert another.get(b"before") == b"1"
        for each in idle:
            assert ends(each), "those that say nothing are dropped"


def ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("node", ["with TLS"], indirect=True)
def test_a_storm_of_connections_leaves_clients_served(node: NodeProcess) -> None:
    """``make large`` has ten times as many."""
    bear_a_storm(node, attempts=1000, commits=20)


# --- clients that do not come to the point --------------------------------------------------------


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HELLO_SECONDS", 0.3)


@asynccontextmanager
async def listening(security: Security | None = None) -> AsyncIterator[Talker]:
    talker = Talker(1, security)
    await talker.listen()
    try:
        yield talker
    finally:
        await talker.close()


SLOW = {
    "nothing": b"",
    "half a name": b"postr",
    "a preamble": PREAMBLE,
    "half an opening": streams.opening_bytes(Opening(streams.TALK))[:-1],
    "half a preface of HTTP/2": b"PRI * HT",
    "HTTP/2, and no call": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5),
    "half a ClientHello": b"\x16\x03\x01\x02\x00\x01",
}


@pytest.mark.parametrize("said", SLOW.values(), ids=SLOW.keys())
def test_a_connection_without_a_hello_is_closed(said: bytes, hurried: None) -> None:
    async def main() -> None:
        async with listening() as talker:
            reader, writer = await asyncio.open_connection(talker.host, talker.port)
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(1000), 10):
                    pass
            writer.close()
            await until(lambda: not len(talker.server.connections))

    run(main())


def let_in(address: str) -> socket.socket:
    """Return a client that was let in; try again if this machine was too slow."""
    while True:
        native = connected(address)
        with contextlib.suppress(ConnectionError):
            native.sendall(streams.opening_bytes(Opening(streams.TALK)))
            if native.recv(100).startswith(PREAMBLE):
                return native
        native.close()


def test_a_client_that_was_let_in_and_says_nothing_is_closed(hurried: None) -> None:
    """It may use the store, and does not say who it is."""
    from tests.remote.servers import Server  # noqa: PLC0415 - has a loop of its own

    with Server() as server:
        with let_in(server.address) as native:
            assert ends(native)
        assert len(server.sessions) == 0


def test_tls_that_is_not_finished_is_closed(tmp_path: Path, hurried: None) -> None:
    authority = Authority(tmp_path)
    security = Security(authority.node("127.0.0.1"))
    files = authority.client()

    def context(*, native: bool) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.load_verify_locations(authority.pem)
        made.load_cert_chain(files.certificate, files.key)
        if native:
            return offering_native(made)
        made.set_alpn_protocols(["h2"])
        return made

    async def main() -> None:
        async with listening(security) as talker:
            for native in (True, False):
                # A ClientHello and nothing more; then the whole of TLS and nothing more.
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                hello = context(native=native).wrap_bio(incoming, outgoing, server_hostname="x")
                with pytest.raises(ssl.SSLWantReadError):
                    hello.do_handshake()
                reader, writer = await asyncio.open_connection(talker.host, talker.port)
                writer.write(outgoing.read())
                await _until_closed(reader, writer)
                await _until_closed(*await _over_tls(talker.port, context(native=native)))
            await until(lambda: not len(talker.server.connections))

    run(main())


async def _over_tls(
    port: int, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with TLS; connect again if this machine was too slow for it."""
    while True:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while await asyncio.wait_for(reader.read(1000), 10):
            pass
    writer.transport.abort()


def test_a_large_frame_of_a_stranger_is_not_kept() -> None:
    """Before it is known who it is, 64 KiB are the most."""

    async def main() -> None:
        async with listening() as talker:
            reader, writer = await asyncio.open_connection(talker.host, talker.port)
            writer.write(PREAMBLE + (2**31).to_bytes(4, "big") + bytes(1000))
            said = await asyncio.wait_for(reader.read(1000), 10)
            (frame,) = streams.Incoming().feed(said)
            refusal = streams.read_reply(frame)
            assert isinstance(refusal, streams.StreamRefusal)
            assert "the limit is 65536" in refusal.reason
            writer.close()

    run(main())


def test_frames_that_never_end_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open streams of clients that have said hello. Each has sent 400 KB of a frame of 1 MB."""
    from tests.remote.servers import Server  # noqa: PLC0415 - has a loop of its own

    budget = Unfinished(2 * 1024 * 1024)
    monkeypatch.setattr(native_server, "Unfinished", lambda: budget)
    part = (1024 * 1024).to_bytes(4, "big") + bytes(400_000)
    with Server() as server, contextlib.ExitStack() as stack:
        hoarders = []
        for number in range(8):
            hello = frames.encode((0, frames.PROTOCOL_VERSION, secret_of(b"%d" % number), 1))
            one = stack.enter_context(connected(server.address))
            one.sendall(streams.opening_bytes(Opening(streams.TALK)) + framed(hello))
            assert one.recv(1000).startswith(PREAMBLE)
            one.sendall(part)
            hoarders.append(one)
        with postroom.connect(server.address, insecure=True) as db:
            db.put(b"key", bytes(900_000))
            assert db.get(b"key") == bytes(900_000)
        hoarders[0].settimeout(20)
        said = b""
        while more := hoarders[0].recv(100_000):
            said += more
        assert b"this frame is the slowest" in said
        assert budget.bytes <= 2 * 1024 * 1024
    assert budget.bytes == 0


def test_the_log_is_not_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    """Neither its lines nor how many there are."""
    forged = "\n2026-01-01 CRITICAL all is lost\x1b[2J"

    async def main() -> None:
        async with listening() as talker:
            talker.talk(cluster())
            for number in range(60):
                for said in (forged + str(number), f"{number}" * 10_000):
                    reader, writer = await asyncio.open_connection(talker.host, talker.port)
                    opening = Opening(streams.FRAMES, streams._encode([1, said, said]))
                    writer.write(PREAMBLE + framed(streams._encode(opening)))
                    await _until_closed(reader, writer)

    run(main())
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert 1 <= len(warned) <= 25
    assert all(each.isprintable() and len(each) < 1000 for each in warned)
