"""Errors as codes with details, limits, and clients that mean harm."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc.aio
import pytest

import postroom
import postroom.aio
from postroom import errors
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway.limits import AdmittedCall, GatewayAdmission, Limits
from postroom.gateway.listener import Gateway, Settings
from postroom.gateway.transactions import commit_for_sure
from postroom.gateway.values import CODES, code_of, detail_of
from tests.gateway.gateways import COMMIT, Stub, failure, on_loop, operations, sent, started, until

Code = grpc.StatusCode


def _made(kind: type[Exception]) -> Exception:
    return kind("told")


@pytest.mark.parametrize(
    ("kind", "code", "retryable", "nothing_happened"),
    [
        (errors.TransactionConflict, Code.ABORTED, True, True),
        (errors.Unavailable, Code.UNAVAILABLE, True, True),
        (errors.CommitUnknown, Code.UNKNOWN, False, False),
        (errors.Invalid, Code.INVALID_ARGUMENT, False, True),
        (errors.KeyTooLarge, Code.INVALID_ARGUMENT, False, True),
        (errors.ValueTooLarge, Code.INVALID_ARGUMENT, False, True),
        (errors.TransactionTooLarge, Code.INVALID_ARGUMENT, False, True),
        (errors.NotInTransaction, Code.INVALID_ARGUMENT, False, True),
        (errors.TransactionExpired, Code.FAILED_PRECONDITION, False, True),
        (errors.TransactionClosed, Code.FAILED_PRECONDITION, False, True),
        (errors.WrongType, Code.FAILED_PRECONDITION, False, True),
        (errors.ConditionFailed, Code.FAILED_PRECONDITION, False, True),
        (errors.LeaseLost, Code.FAILED_PRECONDITION, False, True),
        (errors.TaskFailed, Code.FAILED_PRECONDITION, False, False),
        (errors.StoreLocked, Code.FAILED_PRECONDITION, False, True),
        (errors.VersionMismatch, Code.FAILED_PRECONDITION, False, True),
        (errors.Overflow, Code.OUT_OF_RANGE, False, True),
        (errors.SnapshotTooOld, Code.OUT_OF_RANGE, False, True),
        (errors.DatabaseClosed, Code.UNAVAILABLE, True, True),
        (errors.AccessDenied, Code.PERMISSION_DENIED, False, True),
        (errors.StoreCorrupted, Code.DATA_LOSS, False, False),
        (errors.Error, Code.INTERNAL, False, False),
    ],
)
def test_each_error_has_its_code_and_detail(
    kind: type[Exception], code: Any, retryable: bool, nothing_happened: bool
) -> None:
    error = _made(kind)
    detail = detail_of(error)
    assert code_of(error) == code
    assert detail.type == kind.__name__
    assert (detail.retryable, detail.nothing_happened) == (retryable, nothing_happened)


def test_every_public_error_has_a_code() -> None:
    for name in postroom.__all__:
        kind = getattr(postroom, name)
        if isinstance(kind, type) and issubclass(kind, errors.Error) and kind is not errors.Error:
            assert any(each in CODES for each in kind.__mro__), name


def test_an_unavailable_store_tells_when_to_try_again() -> None:
    assert detail_of(errors.Unavailable("told", retry_after=1.5)).retry_after_seconds == 1.5


@on_loop
async def test_errors_of_calls_carry_their_detail() -> None:
    async with started() as it:
        await it.db.put(b"k", b"text")
        await it.stub.Increment(pb.IncrementRequest(key=b"n", by=(1 << 63) - 1))
        for call, code, name in (
            (it.stub.Get(pb.GetRequest(key=b"k" * 8193)), Code.INVALID_ARGUMENT, "KeyTooLarge"),
            (
                it.stub.Increment(pb.IncrementRequest(key=b"k")),
                Code.FAILED_PRECONDITION,
                "WrongType",
            ),
            (it.stub.Increment(pb.IncrementRequest(key=b"n")), Code.OUT_OF_RANGE, "Overflow"),
            (
                it.stub.Enqueue(pb.EnqueueRequest(queue="missing", payload=b"")),
                Code.INVALID_ARGUMENT,
                "Invalid",
            ),
            (it.stub.Get(pb.GetRequest(key=b"k", at=1 << 63)), Code.INVALID_ARGUMENT, "Invalid"),
        ):
            failed = await failure(call)
            assert failed.code == code, failed.message
            assert failed.detail is not None
            assert failed.detail.type == name
        assert it.total.calls == 0


@on_loop
async def test_a_message_that_is_too_large_is_refused() -> None:
    async with started() as it:
        value = b"v" * (5 << 20)
        failed = await failure(it.stub.Put(pb.PutRequest(key=b"k", value=value)))
        assert failed.code == Code.RESOURCE_EXHAUSTED
        await it.stub.Put(pb.PutRequest(key=b"k", value=b"v"))


@on_loop
async def test_the_calls_of_one_client_are_limited() -> None:
    async with started(limits=Limits(calls_max=8)) as it:
        watching = [it.stub.Watch(pb.WatchRequest(start=b"k")) for _ in range(4)]
        for each in watching:
            await each.read()
        failed = await failure(it.stub.Get(pb.GetRequest(key=b"k")))
        assert failed.code == Code.RESOURCE_EXHAUSTED
        assert failed.detail is not None
        assert (failed.detail.type, failed.detail.retryable) == ("Unavailable", True)
        assert failed.detail.retry_after_seconds > 0
        watching[0].cancel()
        await until(lambda: it.total.calls == 3)
        await it.stub.Get(pb.GetRequest(key=b"k"))
        for each in watching:
            each.cancel()


@on_loop
async def test_the_open_transactions_of_one_client_are_limited() -> None:
    async with started(limits=Limits(transactions_max=4)) as it:
        calls = [it.stub.Transaction() for _ in range(2)]
        for each in calls:
            await sent(each, operations(pb.GetRequest(key=b"k")))
        third = it.stub.Transaction()
        await third.write(operations(pb.GetRequest(key=b"k")))
        assert (await failure(third.read())).code == Code.RESOURCE_EXHAUSTED
        await sent(calls[0], operations(pb.PutRequest(key=b"k", value=b"v"), COMMIT))
        for each in calls:
            each.cancel()


@on_loop
async def test_the_memory_of_transactions_is_limited() -> None:
    async with started(limits=Limits(memory_bytes_max=4 << 20)) as it:
        call = it.stub.Transaction()
        put = pb.PutRequest(key=b"k", value=b"v" * (1 << 20))
        await sent(call, operations(put))
        await call.write(operations(put))
        failed = await failure(call.read())
        assert failed.code == Code.RESOURCE_EXHAUSTED
        assert it.total.memory_bytes == 0
        assert await it.db.get(b"k") is None


@on_loop
async def test_a_large_response_takes_memory_until_it_has_left() -> None:
    async with started(limits=Limits(memory_bytes_max=3 << 20)) as it:
        await it.db.put(b"k", b"v" * (1 << 20))
        for _ in range(5):
            assert (await it.stub.Get(pb.GetRequest(key=b"k"))).value
            await until(lambda: it.total.memory_bytes == 0)
        assert it.gateway.service.admission._clients == {}
    async with started(limits=Limits(memory_bytes_max=1 << 20)) as it:
        await it.db.put(b"k", b"v" * (1 << 20))
        failed = await failure(it.stub.Get(pb.GetRequest(key=b"k")))
        assert failed.code == Code.RESOURCE_EXHAUSTED


def test_a_response_that_leaves_keeps_its_memory_after_its_call() -> None:
    class Context:
        def add_done_callback(self, callback: Any) -> None:
            self.sent = callback

    admission, context = GatewayAdmission(Limits()), Context()
    with admission.call("client") as admitted:
        admitted.take(100)
        admitted.leave(context)
    assert (admission.total.calls, admission.total.memory_bytes) == (1, 100)
    context.sent(context)
    assert (admission.total.calls, admission.total.memory_bytes) == (0, 0)
    assert admission._clients == {}


def test_only_a_large_response_is_counted_until_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaving: list[AdmittedCall] = []
    leave = AdmittedCall.leave

    def noted(call: AdmittedCall, context: Any) -> None:
        leaving.append(call)
        leave(call, context)

    monkeypatch.setattr(AdmittedCall, "leave", noted)

    @on_loop
    async def test() -> None:
        async with started() as it:
            await it.db.put(b"large", b"v" * (20 << 10))
            await it.stub.Get(pb.GetRequest(key=b"small"))
            assert not leaving
            await it.stub.Get(pb.GetRequest(key=b"large"))
            await it.stub.Execute(operations(pb.GetRequest(key=b"large"), COMMIT))
            assert len(leaving) == 2

    test()


@on_loop
async def test_scans_whose_clients_do_not_read_are_limited() -> None:
    async with started(limits=Limits(memory_bytes_max=5 << 20)) as it:
        for first in (0, 10_000):
            async with it.db.begin() as tx:
                for number in range(first, first + 10_000):
                    tx.put(b"k%05d" % number, b"v" * 1000)
        stalled = [it.stub.Scan(pb.ScanRequest()) for _ in range(2)]
        for call in stalled:
            await call.read()
        failed = await failure(it.stub.Scan(pb.ScanRequest()).read())
        assert failed.code == Code.RESOURCE_EXHAUSTED
        for call in stalled:
            call.cancel()
        await until(lambda: it.total.memory_bytes == 0)


@on_loop
async def test_the_results_of_one_request_are_limited() -> None:
    async with started(limits=Limits(response_bytes_max=2 << 20)) as it:
        await it.db.put(b"k", b"v" * (1 << 20))
        call = it.stub.Transaction()
        await call.write(operations(*[pb.GetRequest(key=b"k")] * 3))
        assert (await failure(call.read())).code == Code.INVALID_ARGUMENT


@on_loop
async def test_thousands_of_streams_leave_the_gateway_serving() -> None:
    async with started(limits=Limits(transactions_max=500)) as it:
        calls = [it.stub.Transaction() for _ in range(3000)]

        async def first(call: Any) -> Any:
            try:
                return await sent(call, operations(pb.GetRequest(key=b"k")))
            except (grpc.aio.AioRpcError, AssertionError) as error:
                return error

        answers = await asyncio.gather(*(first(call) for call in calls[:1000]))
        # More than the share of a client are served only if the first ones were idle for too long.
        assert sum(not isinstance(each, Exception) for each in answers) >= 250
        assert it.total.transactions <= 250
        for each in calls:
            each.cancel()
        await until(lambda: it.total.transactions == 0 and it.total.calls == 0)
        await it.stub.Put(pb.PutRequest(key=b"k", value=b"v"))


@on_loop
async def test_bytes_that_are_no_grpc_end_their_connection() -> None:
    async with started() as it:
        port = it.gateway.port
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(garbage + b"\xff" * 100)
            await writer.drain()
            await asyncio.wait_for(reader.read(), 30)
            writer.close()
        await it.stub.Put(pb.PutRequest(key=b"k", value=b"v"))


@on_loop
async def test_a_malformed_request_is_an_error_of_its_call() -> None:
    async with started() as it:
        call = it.channel.unary_unary("/postroom.v1.Postroom/Put")
        failed = await failure(call(b"\xff\xff\xff"))
        assert failed.code in {Code.INTERNAL, Code.INVALID_ARGUMENT, Code.UNKNOWN}
        missing = it.channel.unary_unary("/postroom.v1.Postroom/Missing")
        assert (await failure(missing(b""))).code == Code.UNIMPLEMENTED
        await it.stub.Put(pb.PutRequest(key=b"k", value=b"v"))


@on_loop
async def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.Error, match="cannot listen"):
            async with started(Settings(address, None, is_open=True)):
                pass


@on_loop
async def test_a_store_that_cannot_be_reached_is_unavailable_until_it_can() -> None:
    db = await postroom.aio.open(":memory:")
    reachable = False

    async def connect(_: object) -> postroom.aio.Database:
        if not reachable:
            raise errors.Unavailable("no node that leads has answered", retry_after=0.3)
        return db

    gateway = Gateway(Settings("127.0.0.1:0", None, is_open=True), connect)
    await gateway.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        stub: Any = Stub(channel)
        for _ in range(2):
            failed = await failure(stub.Get(pb.GetRequest(key=b"k")))
            assert failed.code == Code.UNAVAILABLE
            assert failed.detail is not None
            assert failed.detail.nothing_happened
            assert failed.detail.retry_after_seconds == 0.3
        reachable = True
        await stub.Put(pb.PutRequest(key=b"k", value=b"v"))
    await gateway.stop()


@on_loop
async def test_a_commit_whose_outcome_is_unknown_is_sent_again() -> None:
    async with started() as it:
        tx = it.db.begin()
        tx.put(b"k", b"v")
        commit, tries = tx.commit, 0

        async def lost() -> postroom.Timestamp:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise errors.CommitUnknown("the connection was lost")
            return await commit()

        class Lossy:
            may_be_told = True
            commit = staticmethod(lost)

        assert await commit_for_sure(Lossy())  # type: ignore[arg-type]  # as much as it uses
        assert tries == 3
        assert await it.db.get(b"k") == b"v"


@on_loop
async def test_calls_that_are_cancelled_half_way_leave_nothing_behind() -> None:
    async with started() as it:
        for number in range(30):  # more than what is on its way at a time
            await it.db.put(b"k%04d" % number, b"v" * (1 << 20))
        scan = it.stub.Scan(pb.ScanRequest())
        await scan.read()
        watch = it.stub.Watch(pb.WatchRequest(start=b"k"))
        await watch.read()
        wait = it.stub.Execute(operations(pb.ReapRequest(key=b"i", wait_seconds=3600), COMMIT))
        await until(lambda: it.total.calls == 3)
        for call in (scan, watch, wait):
            call.cancel()
        await until(lambda: it.total.calls == 0 and it.total.transactions == 0)
        assert it.total.memory_bytes == 0
        assert it.gateway.service.admission._clients == {}
