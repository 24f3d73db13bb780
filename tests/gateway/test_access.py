"""Tokens, roles and certificates, in front of nodes that ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

import postroom
import postroom.aio
from postroom.cli import gateway as command
from postroom.cli.options import StoreOptions
from postroom.databases.asynchronous import connect_on_behalf
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway.callers import ShownProofs
from postroom.gateway.limits import Limits
from postroom.gateway.listener import Gateway, ListenerTLS, Settings
from postroom.ranges.access import GrantRights, RevokeRights
from postroom.ranges.rights import Verb
from postroom.server.cluster.access import Tokens
from postroom.server.cluster.security import Security
from tests.gateway.gateways import COMMIT, Stub, failure, on_loop, operations, started
from tests.remote.certificates import Authority
from tests.remote.servers import Server
from tests.server.cluster.certificates import Authority as Named

Code = grpc.StatusCode
GET = pb.GetRequest(key=b"k")
PUT = pb.PutRequest(key=b"k", value=b"v")


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


@asynccontextmanager
async def _gateway_of(
    server: Server, tls: postroom.TLS, settings: Settings
) -> AsyncIterator[Gateway]:
    async def connect(proofs: ShownProofs) -> postroom.aio.Database:
        on_behalf = command._on_behalf(proofs)
        return await connect_on_behalf(on_behalf, server.address, tls=tls, token=proofs.token)

    gateway = Gateway(settings, connect)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


def _stub(channel: Any) -> Any:
    return Stub(channel)


def test_the_nodes_decide_about_the_token_of_the_caller(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    tokens = tmp_path / "tokens"
    tokens.write_text("read reader\nwriter\n")
    tokens.chmod(0o600)

    @on_loop
    async def test(server: Server) -> None:
        settings = Settings("127.0.0.1:0", None)
        async with _gateway_of(server, authority.client(), settings) as gateway:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}")
            stub = _stub(channel)
            for token, code in (("wrong", Code.UNAUTHENTICATED), ("", Code.UNAUTHENTICATED)):
                assert (await failure(stub.Get(GET, metadata=_bearer(token)))).code == code
            assert (await failure(stub.Get(GET))).code == Code.UNAUTHENTICATED
            await stub.Put(PUT, metadata=_bearer("writer"))
            assert (await stub.Get(GET, metadata=_bearer("reader"))).value == b"v"
            for call in (
                stub.Put(PUT, metadata=_bearer("reader")),
                stub.Delete(pb.DeleteRequest(key=b"k"), metadata=_bearer("reader")),
                stub.Increment(pb.IncrementRequest(key=b"n"), metadata=_bearer("reader")),
                stub.Execute(operations(PUT, COMMIT), metadata=_bearer("reader")),
            ):
                assert (await failure(call)).code == Code.PERMISSION_DENIED
            await channel.close()

    with Server(authority.server(Tokens(tokens))) as server:
        test(server)
        with postroom.connect(server.address, tls=authority.client(), token="writer") as db:
            assert [*db.scan()] == [(b"k", b"v")]


def test_the_role_read_writes_nothing_past_the_gateways_own_file(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read reader\nwriter\n")
    tokens.chmod(0o600)
    roles = command._roles(tokens, None)

    @on_loop
    async def test() -> None:
        async with started(Settings("127.0.0.1:0", None, roles)) as it:
            await it.db.create_queue("q")
            reader = _bearer("reader")
            writes = [
                it.stub.Put(PUT, metadata=reader),
                it.stub.Delete(pb.DeleteRequest(key=b"k"), metadata=reader),
                it.stub.Send(pb.SendRequest(key=b"k"), metadata=reader),
                it.stub.Increment(pb.IncrementRequest(key=b"k"), metadata=reader),
                it.stub.Enqueue(pb.EnqueueRequest(queue="q"), metadata=reader),
                it.stub.Acknowledge(pb.AcknowledgeRequest(queue="q"), metadata=reader),
                it.stub.Reject(pb.RejectRequest(queue="q"), metadata=reader),
                it.stub.Extend(pb.ExtendRequest(queue="q"), metadata=reader),
                it.stub.Receive(pb.ReceiveRequest(queue="q"), metadata=reader).read(),
            ]
            for call in writes:
                assert (await failure(call)).code == Code.PERMISSION_DENIED
            for name in ("put", "delete", "send", "defer", "reap", "enqueue", "claim",
                         "acknowledge", "reject", "increment", "get_for_update"):  # fmt: skip
                operation = pb.Operation()
                getattr(operation, name).SetInParent()
                request = pb.TransactionRequest(operations=[operation])
                stream = it.stub.Transaction(metadata=reader)
                await stream.write(request)
                assert (await failure(stream.read())).code == Code.PERMISSION_DENIED, name
            reading = operations(GET, pb.ScanRequest(), pb.PeekRequest(key=b"k"), COMMIT)
            await it.stub.Execute(reading, metadata=reader)
            await it.stub.Put(PUT, metadata=_bearer("writer"))
            for wrong in (None, _bearer("wrong"), (("authorization", "Basic abc"),)):
                failed = await failure(it.stub.Get(GET, metadata=wrong))
                assert failed.code == Code.UNAUTHENTICATED
                assert failed.detail is not None
                assert failed.detail.type == "AccessDenied"

    test()


def test_a_client_by_tls_shows_a_certificate(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "authority"), Authority(tmp_path / "other")
    certificate, key = authority.issue("127.0.0.1")
    tls = ListenerTLS(certificate, key, authority.ca)
    roles_file = tmp_path / "roles"
    roles_file.write_text("write *\n")
    roles = command._roles(None, roles_file)

    def credentials(of: Authority | None) -> Any:
        ca = authority.ca.read_bytes()
        if of is None:
            return grpc.ssl_channel_credentials(ca)
        own, own_key = of.issue("a-client")
        return grpc.ssl_channel_credentials(ca, own_key.read_bytes(), own.read_bytes())

    @on_loop
    async def test() -> None:
        async with started(Settings("127.0.0.1:0", tls, roles)) as it:
            secure = grpc.aio.secure_channel(it.address, credentials(authority))
            await _stub(secure).Put(PUT)
            await secure.close()
            for wrong in (None, other):
                channel = grpc.aio.secure_channel(it.address, credentials(wrong))
                failed = await failure(_stub(channel).Put(PUT, timeout=20))
                assert failed.code == Code.UNAVAILABLE
                assert failed.detail is None
                await channel.close()
            failed = await failure(it.stub.Put(PUT, timeout=20))  # without TLS
            assert failed.code == Code.UNAVAILABLE

    test()


def test_a_caller_by_its_certificate_has_the_rights_granted_to_its_name(tmp_path: Path) -> None:
    authority = Named(tmp_path)
    node, own = authority.node("127.0.0.1"), authority.client("the-gateway")
    roles_file = tmp_path / "roles"
    roles_file.write_text("none shop\nread reports\nwrite *\n")
    roles = command._roles(None, roles_file)
    listener = ListenerTLS(node.certificate, node.key, node.ca)
    settings = Settings("127.0.0.1:0", listener, roles, nodes_check=True)

    def channel_of(name: str, gateway: Gateway) -> Any:
        shown = authority.client(name)
        files = (shown.ca, shown.key, shown.certificate)
        credentials = grpc.ssl_channel_credentials(*(each.read_bytes() for each in files))
        return grpc.aio.secure_channel(f"127.0.0.1:{gateway.port}", credentials)

    @on_loop
    async def test(server: Server) -> None:
        tls = postroom.TLS(own.ca, own.certificate, own.key)
        async with _gateway_of(server, tls, settings) as gateway:
            channels = [channel_of(each, gateway) for each in ("shop", "reports", "other")]
            shop, reports, other = map(_stub, channels)
            await other.Put(PUT)
            for refused in (shop.Get(GET), shop.Put(PUT), reports.Put(PUT)):
                assert (await failure(refused)).code == Code.PERMISSION_DENIED
            assert (await reports.Get(GET)).value == b"v"
            for name, verb in (("shop", Verb.READ), ("reports", Verb.WRITE)):
                server.ask(GrantRights(name, verb, b"k"))
            assert (await shop.Get(GET)).value == b"v"
            assert (await failure(shop.Put(PUT))).code == Code.PERMISSION_DENIED
            await reports.Put(PUT)
            failed = await failure(reports.Put(pb.PutRequest(key=b"other", value=b"v")))
            assert failed.code == Code.PERMISSION_DENIED
            server.ask(RevokeRights("shop"))
            assert (await failure(shop.Get(GET))).code == Code.PERMISSION_DENIED
            for channel in channels:
                await channel.close()

    with Server(Security(node)) as server:
        test(server)


def test_a_gateway_with_a_folder_refuses_callers_whose_rights_nodes_would_check(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("none granted shop\nwriter\n")
    tokens.chmod(0o600)
    connect = command._connect(StoreOptions(path=tmp_path / "store"))
    settings = Settings("127.0.0.1:0", None, command._roles(tokens, None))

    @on_loop
    async def test() -> None:
        gateway = Gateway(settings, connect)
        await gateway.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
            await _stub(channel).Put(PUT, metadata=_bearer("writer"))
            for call in (_stub(channel).Get(GET, metadata=_bearer("granted")),
                         _stub(channel).Put(PUT, metadata=_bearer("granted"))):  # fmt: skip
                failed = await failure(call)
                assert failed.code == Code.UNAUTHENTICATED
                assert failed.detail is not None
                assert failed.detail.type == "AccessDenied"
        await gateway.stop()

    test()


@on_loop
async def test_many_unknown_tokens_leave_the_gateway_serving() -> None:
    refused = postroom.AccessDenied("the token is not known here; nothing was done")
    db = await postroom.aio.open(":memory:")

    async def connect(proofs: ShownProofs) -> postroom.aio.Database:
        if proofs.token != "known":
            raise refused
        return db

    limits = Limits(connections_max=4)
    gateway = Gateway(Settings("127.0.0.1:0", None, limits=limits), connect)
    await gateway.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}")
    stub = _stub(channel)
    for number in range(100):
        failed = await failure(stub.Get(GET, metadata=_bearer(f"unknown {number}")))
        assert failed.code in {Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED}
    await stub.Put(PUT, metadata=_bearer("known"))
    assert gateway.service.admission.total.calls == 0
    await channel.close()
    await gateway.stop()
