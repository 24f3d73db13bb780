"""Who may talk to a node: certificates, tokens, and everybody else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from postroom.errors import AccessDenied
from postroom.server.cluster.applying import Questions
from postroom.server.cluster.nodes_service import ADMIT, Application, encode
from postroom.server.cluster.security import Certificates, Security, Tokens
from tests.server.cluster.certificates import Authority
from tests.server.cluster.streams import Talker, cluster, until

METHOD = "/test/Do"
Check = Callable[[Any], Awaitable[None]]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def node(authority: Authority) -> Certificates:
    return authority.node("127.0.0.1", "node-1.example.com")


@asynccontextmanager
async def serving(security: Security, check: Check) -> AsyncIterator[str]:
    """A server that checks who calls; its address."""

    async def do(_: bytes, context: Any) -> bytes:
        await check(context)
        return b"done"

    server = aio.server()
    handlers = {"Do": grpc.unary_unary_rpc_method_handler(do)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = security.add_port(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def call(channel: aio.Channel, token: str | None = None) -> grpc.StatusCode:
    """How a call ends."""
    metadata = () if token is None else (("authorization", token),)
    async with channel:
        try:
            await channel.unary_unary(METHOD)(b"", metadata=metadata, timeout=10)
        except aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def ends(server: Security, check: Check, client: Security) -> grpc.StatusCode:
    async with serving(server, check) as address:
        return await call(client.open_channel(address, ()))


async def everybody(_: Any) -> None:
    """No check but that of TLS."""


# --- the connection -------------------------------------------------------------------------------


def test_both_sides_prove_who_they_are(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        client = Security(authority.client())
        assert await ends(Security(node), everybody, client) is grpc.StatusCode.OK

    run(main())


def test_certificates_that_are_worth_nothing(
    tmp_path: Path, authority: Authority, node: Certificates
) -> None:
    other = Authority(tmp_path, "other").client()
    strangers = {
        "of another authority": other,
        "the right authority, another's certificate": Certificates(
            authority.pem, other.certificate, other.key
        ),
        "expired": authority.node("127.0.0.1", expired=True),
    }

    async def main() -> None:
        for name, stranger in strangers.items():
            ended = await ends(Security(node), everybody, Security(stranger))
            assert ended is grpc.StatusCode.UNAVAILABLE, name

    run(main())


def test_a_node_that_cannot_prove_itself_is_not_talked_to(
    tmp_path: Path, authority: Authority
) -> None:
    client = Security(authority.client())
    false_nodes = {
        "of another authority": Authority(tmp_path, "other").node("127.0.0.1"),
        "of another host": authority.node("node-2.example.com"),
        "a client's": authority.client(),
        "expired": authority.node("127.0.0.1", expired=True),
    }

    async def main() -> None:
        for name, node in false_nodes.items():
            ended = await ends(Security(node), everybody, client)
            assert ended is grpc.StatusCode.UNAVAILABLE, name

    run(main())


def test_without_a_certificate_nothing_is_read(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        async with serving(Security(node), everybody) as address:
            credentials = grpc.ssl_channel_credentials(authority.pem.read_bytes())
            ended = await call(aio.secure_channel(address, credentials))
            assert ended is grpc.StatusCode.UNAVAILABLE

    run(main())


def test_tls_and_none_do_not_meet(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        secure, insecure = Security(node), Security(None)
        assert insecure.insecure
        assert not secure.insecure
        assert await ends(secure, everybody, insecure) is grpc.StatusCode.UNAVAILABLE
        assert await ends(insecure, everybody, secure) is grpc.StatusCode.UNAVAILABLE
        assert await ends(insecure, insecure.check_client, insecure) is grpc.StatusCode.OK

    run(main())


# --- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "address", "may"),
    [
        (["127.0.0.1"], "127.0.0.1:7400", True),
        (["127.0.0.1"], "127.0.0.2:7400", False),
        (["Node-1.example.com"], "node-1.Example.com:7400", True),
        (["node-1.example.com"], "node-2.example.com:7400", False),
        (["*.example.com"], "node-2.example.com:7400", True),
        (["*.example.com"], "a.b.example.com:7400", False),
        (["::1"], "[0:0::1]:7400", True),
        (["::1"], "[::2]:7400", False),
    ],
)
def test_whose_certificate_is_one_of_the_node_at(
    authority: Authority, node: Certificates, hosts: list[str], address: str, may: bool
) -> None:
    security = Security(node)

    async def main() -> None:
        caller = Security(authority.node(*hosts))
        ended = await ends(security, lambda context: security.check_node(context, address), caller)
        expected = grpc.StatusCode.OK if may else grpc.StatusCode.PERMISSION_DENIED
        assert ended is expected

    run(main())


def test_a_client_is_no_node_whatever_its_name(authority: Authority, node: Certificates) -> None:
    security = Security(node)

    async def main() -> None:
        client = Security(authority.client("node-1.example.com"))
        for host in ("node-1.example.com", "node-1.example.com@example.com"):

            async def check(context: Any, address: str = f"{host}:1") -> None:
                await security.check_node(context, address)

            ended = await ends(security, check, client)
            assert ended is grpc.StatusCode.PERMISSION_DENIED

    run(main())


def test_a_client_is_not_let_in_as_a_node(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        talker = Talker(1, Security(node))
        await talker.listen()
        try:
            channel = Security(authority.client()).open_channel(talker.address, ())
            async with channel:
                for address in ("alice:1", "alice@example.com:1", talker.address):
                    request = encode(Application(bytes(16), address))
                    with pytest.raises(aio.AioRpcError) as refused:
                        await channel.unary_unary(ADMIT)(request)
                    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            questions = Questions(Security(authority.client()))
            with pytest.raises(AccessDenied, match="subject alternative name"):
                await questions.admit([talker.address], Application(bytes(16), "alice:1"))
            await questions.close()
        finally:
            await talker.close()

    run(main())


def test_nodes_talk_to_nodes_only(
    authority: Authority, node: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        one, two = Talker(1, Security(node)), Talker(2, Security(node))
        false = Talker(3, Security(node))  # it listens as a node, and calls as a client
        for each in (one, two, false):
            await each.listen()
        false.security = Security(authority.client())
        try:
            for each in (one, two, false):
                each.talk(cluster(one, two, false))
            await until(lambda: one.peers.connected(2) and two.peers.connected(1))
            one.peers.send(2, b"frame")
            await until(lambda: two.frames == [(1, b"frame")])
            await until(lambda: "its certificate names no host" in caplog.text)
            false.peers.send(1, b"never")
            assert not false.peers.connected(1)
            assert one.frames == []
            answers = await Questions(Security(node)).hello([two.address])
            assert answers[two.address].store_id == two.descriptor.store_id
        finally:
            for each in (one, two, false):
                await each.close()

    run(main())


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_asked_for(tmp_path: Path, authority: Authority, node: Certificates) -> None:
    path = tmp_path / "tokens"
    path.write_text("first\n\n  second  \n")
    security = Security(node, Tokens(path))
    client = Security(authority.client())

    async def main() -> None:
        async with serving(security, security.check_client) as address:

            async def ended(token: str | None) -> grpc.StatusCode:
                return await call(client.open_channel(address, ()), token)

            for wrong in (None, "", "first", "Bearer", "Bearer ", "Bearer wrong", "Bearer firs"):
                assert await ended(wrong) is grpc.StatusCode.UNAUTHENTICATED, wrong
            assert await ended("Bearer first") is grpc.StatusCode.OK
            assert await ended("Bearer second") is grpc.StatusCode.OK
            path.write_text("third\n")
            assert await ended("Bearer first") is grpc.StatusCode.UNAUTHENTICATED
            assert await ended("Bearer third") is grpc.StatusCode.OK

    run(main())


def test_a_file_of_tokens_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("first\n")
    tokens = Tokens(path)
    replacement = tmp_path / "new"
    replacement.write_text("other\n")
    before = path.stat()
    os.utime(replacement, ns=(before.st_atime_ns, before.st_mtime_ns))
    replacement.rename(path)  # as large as the old one, and as old
    assert tokens.allow("other")
    assert not tokens.allow("first")
    path.unlink()
    assert tokens.allow("other")  # while it is being replaced
    path.write_text("")
    assert not tokens.allow("other")
    assert not tokens.allow("")
    path.write_text("back\n")
    assert tokens.allow("back")


def test_files_that_cannot_be_used(tmp_path: Path, node: Certificates) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(AccessDenied, match="holds no token"):
        Tokens(empty)
    with pytest.raises(AccessDenied, match="No such file"):
        Tokens(tmp_path / "missing")
    with pytest.raises(AccessDenied, match="No such file"):
        Security(Certificates(tmp_path / "missing", node.certificate, node.key))
    with pytest.raises(AccessDenied, match="PEM"):
        Security(Certificates(empty, node.certificate, node.key))


def test_a_key_of_another_certificate(authority: Authority, node: Certificates) -> None:
    wrong = Certificates(node.ca, node.certificate, authority.client().key)
    with pytest.raises(AccessDenied, match="does not belong to the certificate"):
        Security(wrong)


def test_a_port_in_use_is_no_matter_of_certificates(node: Certificates) -> None:
    async def main() -> None:
        async with serving(Security(node), everybody) as address:
            with pytest.raises(RuntimeError):
                Security(node).add_port(aio.server(options=(("grpc.so_reuseport", 0),)), address)

    run(main())
