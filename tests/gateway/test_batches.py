"""Streams of many transactions: outcomes, limits, and every way in which a stream may end."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

import postroom
from postroom.cli import gateway as command
from postroom.gateway import batches
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway.limits import Limits
from postroom.gateway.listener import Settings
from tests.gateway.gateways import COMMIT, failure, on_loop, operations, sent, started, until

Code = grpc.StatusCode


def _put(number: int, key: bytes = b"") -> pb.TransactionRequest:
    request = operations(pb.PutRequest(key=key or b"k%d" % number, value=b"v"), COMMIT)
    request.number = number
    return request


def _numbered(number: int, request: pb.TransactionRequest) -> pb.TransactionRequest:
    request.number = number
    return request


def _batch(*transactions: pb.TransactionRequest) -> pb.BatchExecuteRequest:
    return pb.BatchExecuteRequest(transactions=transactions)


async def _responses(call: Any, count: int) -> dict[int, pb.TransactionResponse]:
    """Read the responses of ``count`` transactions; each has come once."""
    found: dict[int, pb.TransactionResponse] = {}
    while len(found) < count:
        response = await call.read()
        assert response is not grpc.aio.EOF
        for each in response.transactions:
            assert each.number not in found
            found[each.number] = each
    assert len(found) == count
    return found


def _detail(response: pb.TransactionResponse) -> pb.ErrorDetail:
    detail = pb.ErrorDetail()
    assert response.error.details[0].Unpack(detail)
    return detail


@on_loop
async def test_each_transaction_of_a_stream_has_its_own_outcome() -> None:
    async with started() as it:
        await it.db.put(b"a", b"1")
        call = it.stub.BatchExecute()
        await call.write(
            _batch(
                _numbered(7, operations(pb.GetRequest(key=b"a"), COMMIT)),
                _numbered(8, operations(pb.PutRequest(key=b"k" * 8193), COMMIT)),
                _numbered(9, operations(pb.PutRequest(key=b"b", value=b"2"))),
            )
        )
        increment = operations(pb.IncrementRequest(key=b"n"), COMMIT)
        await call.write(_batch(_numbered(1 << 63, increment)))
        found = await _responses(call, 4)
        assert found[7].results[0].get.value == b"1"
        assert len(found[7].transaction_id) == 24
        for number, name in ((8, "KeyTooLarge"), (9, "Invalid")):
            assert found[number].error.code == Code.INVALID_ARGUMENT.value[0]
            assert _detail(found[number]).type == name
            assert _detail(found[number]).nothing_happened
            assert not found[number].results
        assert not found[1 << 63].HasField("error")
        assert found[1 << 63].results[1].commit.timestamp
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == Code.OK
        assert await it.db.get(b"b") is None
        assert it.total.calls == it.total.transactions == it.total.memory_bytes == 0


@on_loop
async def test_a_transaction_is_answered_before_an_earlier_one_that_waits() -> None:
    async with started() as it:
        call = it.stub.BatchExecute()
        await call.write(
            _batch(
                _numbered(1, operations(pb.ReapRequest(key=b"inbox", wait_seconds=60), COMMIT)),
                _put(2),
            )
        )
        assert set(await _responses(call, 1)) == {2}
        await it.stub.Send(pb.SendRequest(key=b"inbox", value=b"late"))
        found = await _responses(call, 1)
        assert found[1].results[0].inbox.messages[0].value == b"late"


@on_loop
async def test_transactions_of_a_stream_conflict_as_those_of_different_clients() -> None:
    async with started() as it:
        call = it.stub.BatchExecute()
        add = [_numbered(n, operations(pb.IncrementRequest(key=b"n"), COMMIT)) for n in range(50)]
        await call.write(_batch(*add))
        found = await _responses(call, 50)
        conflicts = [each for each in found.values() if each.HasField("error")]
        assert all(_detail(each).type == "TransactionConflict" for each in conflicts)
        assert all(_detail(each).retryable for each in conflicts)
        assert postroom.integer(await it.db.get(b"n")) == 50 - len(conflicts)


@on_loop
async def test_an_id_that_comes_twice_is_one_transaction() -> None:
    async with started() as it:
        ids = await it.stub.NewTransactionId(pb.NewTransactionIdRequest(count=3))
        assert len({ids.transaction_id, *ids.other_ids}) == 3
        begin = {"transaction_id": ids.other_ids[0]}
        request = [
            _numbered(n, operations(pb.PutRequest(key=b"k", value=b"%d" % n), COMMIT, **begin))
            for n in (1, 2)
        ]
        call = it.stub.BatchExecute()
        await call.write(_batch(*request))
        found = await _responses(call, 2)
        await call.write(_batch(request[0]))
        found[3] = (await _responses(call, 1))[1]
        assert len({each.results[1].commit.timestamp for each in found.values()}) == 1


@on_loop
async def test_too_many_ids_are_refused() -> None:
    async with started() as it:
        failed = await failure(it.stub.NewTransactionId(pb.NewTransactionIdRequest(count=1001)))
        assert failed.code == Code.INVALID_ARGUMENT


@on_loop
async def test_a_client_that_ends_its_stream_gets_all_responses() -> None:
    async with started() as it:
        call = it.stub.BatchExecute()
        wait = operations(pb.ReapRequest(key=b"inbox", wait_seconds=60), COMMIT)
        await call.write(_batch(*map(_put, range(999)), _numbered(999, wait)))
        await call.done_writing()
        found = await _responses(call, 999)
        assert 999 not in found
        await it.stub.Send(pb.SendRequest(key=b"inbox", value=b"late"))
        assert 999 in await _responses(call, 1)
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == Code.OK


@on_loop
async def test_a_stream_without_transactions_is_no_error() -> None:
    async with started() as it:
        call = it.stub.BatchExecute()
        await call.write(_batch())
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == Code.OK


@on_loop
async def test_a_request_of_too_many_transactions_is_refused_after_earlier_ones() -> None:
    async with started() as it:
        call = it.stub.BatchExecute()
        await call.write(_batch(*map(_put, range(300))))
        await call.write(pb.BatchExecuteRequest(transactions=[pb.TransactionRequest()] * 1001))
        await _responses(call, 300)
        failed = await failure(call.read())
        assert failed.code == Code.INVALID_ARGUMENT
        assert failed.detail is not None
        assert it.total.calls == 0


@on_loop
async def test_a_million_empty_transactions_in_a_request_are_refused_at_once() -> None:
    async with started() as it:
        send = it.channel.stream_stream("/postroom.v1.Postroom/BatchExecute")
        call = send()
        await call.write(b"\x0a\x00" * 1_000_000)
        assert (await failure(call.read())).code == Code.INVALID_ARGUMENT
        await it.stub.Put(pb.PutRequest(key=b"k", value=b"v"))
        assert it.total.calls == 0


@on_loop
async def test_a_hundred_thousand_tiny_transactions_are_answered_and_leave_nothing() -> None:
    async with started() as it:
        call = it.stub.BatchExecute()
        requests = 100

        async def send() -> None:
            for first in range(requests):
                empty = [pb.TransactionRequest(number=first * 1000 + n) for n in range(1000)]
                await call.write(_batch(*empty))
            await call.done_writing()

        sending = asyncio.create_task(send())
        found = await _responses(call, requests * 1000)
        await sending
        assert all(each.error.code == Code.INVALID_ARGUMENT.value[0] for each in found.values())
        assert await call.code() == Code.OK
        assert it.total.calls == it.total.memory_bytes == 0


def test_a_client_that_reads_nothing_has_a_bounded_number_of_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "UNDER_WAY_MAX", 8)

    @on_loop
    async def test() -> None:
        async with started() as it:
            await it.db.put(b"large", b"v" * (1 << 20))
            call = it.stub.BatchExecute()
            get = pb.GetRequest(key=b"large")
            await call.write(_batch(*[_numbered(n, operations(get, COMMIT)) for n in range(500)]))
            await call.write(_batch(_put(1000, b"after")))
            await until(lambda: it.total.memory_bytes >= 4 << 20)
            most = 0
            for _ in range(100):
                await asyncio.sleep(0)
                most = max(most, it.total.calls)
            assert most <= 1 + 8
            assert it.total.transactions == 0  # they have ended; their responses wait
            assert await it.db.get(b"after") is None
            assert await it.db.get(b"large")  # others are served
            assert len(await _responses(call, 501)) == 501  # it was only slow
            call.cancel()
            await until(lambda: it.total.calls == 0 and it.total.memory_bytes == 0)

    test()


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_client_that_vanishes_gives_back_locks_and_claims_of_all_transactions(how: str) -> None:
    @on_loop
    async def test() -> None:
        async with started() as it:
            queue = await it.db.create_queue("q")
            await it.stub.Enqueue(pb.EnqueueRequest(queue="q", payload=b"1"))
            channel = grpc.aio.insecure_channel(it.address)
            call = type(it.stub)(channel).BatchExecute()
            wait = pb.ReapRequest(key=b"inbox", wait_seconds=3600)
            lock = ("get_for_update", pb.GetRequest(key=b"k"))
            put = pb.PutRequest(key=b"k", value=b"v")
            claim = pb.ClaimRequest(queue="q", wait_seconds=10)
            await call.write(
                _batch(
                    _numbered(1, operations(lock, put, wait, COMMIT)),
                    _numbered(2, operations(claim, wait, COMMIT)),
                )
            )
            await until(lambda: it.total.transactions == 2)
            await until(lambda: it.total.memory_bytes > 0)
            assert not await queue.claim(wait=0.5)
            if how == "cancel":
                call.cancel()
            await channel.close()
            await until(lambda: it.total.calls == 0 and it.total.transactions == 0)
            assert it.total.memory_bytes == 0
            async with it.db.begin() as tx:
                assert await asyncio.wait_for(tx.get_for_update(b"k"), 10) is None
            [message] = await queue.claim(wait=10)
            assert message.epoch == 0  # it was given back uncounted

    test()


@on_loop
async def test_a_deadline_ends_a_stream_and_its_transactions() -> None:
    async with started() as it:
        call = it.stub.BatchExecute(timeout=0.3)
        wait = pb.ReapRequest(key=b"k", wait_seconds=3600)
        await call.write(_batch(_numbered(1, operations(wait, COMMIT))))
        failed = await failure(call.read())
        assert failed.code == Code.DEADLINE_EXCEEDED
        await until(lambda: it.total.calls == 0 and it.total.transactions == 0)


@on_loop
async def test_a_transaction_above_a_limit_fails_alone() -> None:
    async with started(limits=Limits(transactions_max=4)) as it:
        open_one = it.stub.Transaction()
        await sent(open_one, operations(pb.GetRequest(key=b"k")))  # one client may have two
        call = it.stub.BatchExecute()
        wait = pb.ReapRequest(key=b"inbox", wait_seconds=60)
        await call.write(_batch(*[_numbered(n, operations(wait, COMMIT)) for n in range(2)]))
        [refused] = (await _responses(call, 1)).values()
        assert refused.error.code == Code.RESOURCE_EXHAUSTED.value[0]
        assert _detail(refused).retry_after_seconds > 0
        assert _detail(refused).nothing_happened
        await it.stub.Send(pb.SendRequest(key=b"inbox", value=b"1"))
        await _responses(call, 1)
        await call.write(_batch(_put(10)))
        assert not (await _responses(call, 1))[10].HasField("error")


@on_loop
async def test_the_memory_of_a_stream_is_limited_before_it_commits() -> None:
    async with started(limits=Limits(memory_bytes_max=3 << 20)) as it:
        await it.db.put(b"large", b"v" * (1 << 20))
        call = it.stub.BatchExecute()
        read = [pb.GetRequest(key=b"large")] * 2
        put = pb.PutRequest(key=b"k", value=b"v")
        await call.write(_batch(_numbered(1, operations(*read, put, COMMIT))))
        refused = (await _responses(call, 1))[1]
        assert _detail(refused).nothing_happened
        assert refused.error.code == Code.RESOURCE_EXHAUSTED.value[0]
        assert await it.db.get(b"k") is None
        failed = await failure(it.stub.Execute(operations(*read, put, COMMIT)))
        assert failed.code == Code.RESOURCE_EXHAUSTED
        assert await it.db.get(b"k") is None


@on_loop
async def test_a_request_for_which_there_is_no_memory_ends_the_stream_after_earlier_ones() -> None:
    async with started(limits=Limits(memory_bytes_max=2 << 20)) as it:
        call = it.stub.BatchExecute()
        await call.write(_batch(_put(1)))
        large = pb.PutRequest(key=b"k", value=b"v" * (700 << 10))
        await call.write(_batch(*[_numbered(n, operations(large, COMMIT)) for n in (2, 3)]))
        assert set(await _responses(call, 1)) == {1}
        failed = await failure(call.read())
        assert failed.code == Code.RESOURCE_EXHAUSTED
        assert failed.detail is not None
        assert failed.detail.nothing_happened
        assert it.total.memory_bytes == 0


def test_the_role_read_writes_nothing_by_a_stream(tmp_path: Any) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read reader\nwriter\n")
    tokens.chmod(0o600)
    roles = command._roles(tokens, None)

    @on_loop
    async def test() -> None:
        async with started(Settings("127.0.0.1:0", None, roles)) as it:
            call = it.stub.BatchExecute(metadata=(("authorization", "Bearer reader"),))
            get = _numbered(1, operations(pb.GetRequest(key=b"k"), COMMIT))
            await call.write(_batch(get, _put(2), get))
            response = await call.read()
            codes = sorted(each.error.code for each in response.transactions)
            assert codes == [0, 0, Code.PERMISSION_DENIED.value[0]]
            assert await it.db.get(b"k2") is None
            unknown = it.stub.BatchExecute(metadata=(("authorization", "Bearer wrong"),))
            assert (await failure(unknown.read())).code == Code.UNAUTHENTICATED

    test()


@on_loop
async def test_unknown_fields_are_ignored_and_unknown_operations_refused() -> None:
    async with started() as it:
        call = it.channel.stream_stream("/postroom.v1.Postroom/BatchExecute")()
        known = _put(1).SerializeToString() + b"\xfa\x7f\x03new"  # the field 2047
        operation = b"\x12\x05\xfa\x7f\x02ab"  # an operation of a later version
        later = operation + _put(2).SerializeToString()
        request = b"".join(b"\x0a" + bytes([len(each)]) + each for each in (known, later))
        await call.write(request)
        found: dict[int, Any] = {}
        while len(found) < 2:
            response = pb.BatchExecuteResponse.FromString(await call.read())
            found |= {each.number: each for each in response.transactions}
        assert not found[1].HasField("error")
        assert found[2].error.code == Code.INVALID_ARGUMENT.value[0]
        assert await it.db.get(b"k2") is None


@on_loop
async def test_bytes_that_are_no_request_end_the_stream_alone() -> None:
    async with started() as it:
        call = it.channel.stream_stream("/postroom.v1.Postroom/BatchExecute")()
        await call.write(b"\xff\xff\xff")
        failed = await failure(call.read())
        assert failed.code == Code.INVALID_ARGUMENT
        await it.stub.Put(pb.PutRequest(key=b"k", value=b"v"))
        assert it.total.calls == 0
