"""Transactions: each operation, retries, and every way in which a stream may end."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

import postroom
from postroom.gateway import postroom_pb2 as pb
from postroom.gateway import transactions
from tests.gateway.gateways import COMMIT, failure, on_loop, operations, sent, started, until

Code = grpc.StatusCode


@on_loop
async def test_a_stream_is_a_transaction_that_sees_its_own_writes() -> None:
    async with started() as it:
        await it.db.put(b"a", b"1")
        call = it.stub.Transaction()
        first = await sent(
            call,
            operations(
                pb.GetRequest(key=b"a"),
                pb.GetRequest(key=b"b"),
                pb.PutRequest(key=b"b", value=b"2"),
                pb.DeleteRequest(key=b"a"),
                pb.IncrementRequest(key=b"n", by=3),
            ),
        )
        assert first.results[0].get.value == b"1"
        assert not first.results[1].get.HasField("value")
        assert first.results[4].increment.sum == 3
        second = await sent(
            call,
            operations(
                pb.GetRequest(key=b"b"),
                ("get_for_update", pb.GetRequest(key=b"a")),
                pb.ScanRequest(limit=1),
            ),
        )
        assert not second.transaction_id
        assert second.results[0].get.value == b"2"
        assert not second.results[1].get.HasField("value")
        assert [pair.key for pair in second.results[2].scan.pairs] == [b"b"]
        assert second.results[2].scan.more
        assert await it.db.get(b"b") is None
        last = await sent(call, operations(COMMIT))
        assert last.results[0].commit.timestamp
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == Code.OK
        assert await it.db.get(b"b") == b"2"


@on_loop
async def test_messages_are_sent_and_reaped() -> None:
    async with started() as it:
        call = it.stub.Transaction()
        await sent(call, operations(pb.SendRequest(key=b"k", value=b"1"), COMMIT))
        call = it.stub.Transaction()
        reaped = await sent(call, operations(pb.ReapRequest(key=b"k", max_results=5)))
        assert [each.value for each in reaped.results[0].inbox.messages] == [b"1"]
        assert not reaped.results[0].inbox.more
        await sent(call, operations(pb.PutRequest(key=b"done", value=b"1"), COMMIT))
        assert not await it.db.peek(b"k")


@on_loop
async def test_a_reap_waits_for_the_first_message() -> None:
    async with started() as it:
        call = it.stub.Transaction()
        waiting = asyncio.create_task(
            sent(call, operations(pb.ReapRequest(key=b"k", wait_seconds=60)))
        )
        await asyncio.sleep(0.05)
        await it.stub.Send(pb.SendRequest(key=b"k", value=b"late"))
        assert (await waiting).results[0].inbox.messages[0].value == b"late"
        call.cancel()


@on_loop
async def test_updates_are_deferred() -> None:
    async with started() as it:
        await it.db.put(b"gone", b"1")
        await it.db.put(b"span/1", b"1")
        defer = [
            pb.DeferRequest(put=pb.PutRequest(key=b"p", value=b"1")),
            pb.DeferRequest(delete=pb.DeleteRequest(key=b"gone")),
            pb.DeferRequest(increment=pb.IncrementRequest(key=b"n", by=2)),
            pb.DeferRequest(delete_range=pb.DeleteRange(start=b"span/", end=b"span0")),
            pb.DeferRequest(accounting=pb.Accounting(key=b"sales/eu", metrics={"orders": 1})),
        ]
        call = it.stub.Transaction()
        await sent(call, operations(*defer, COMMIT))
        await it.db.drain()
        found = [await it.db.get(key) for key in (b"p", b"gone", b"span/1")]
        assert found == [b"1", None, None]
        assert postroom.integer(await it.db.get(b"n")) == 2
        assert await it.db.accounting(b"sales") == {"orders": 1}


@on_loop
async def test_messages_of_queues_are_enqueued_claimed_and_settled() -> None:
    async with started() as it:
        queue = await it.db.create_queue("q")
        call = it.stub.Transaction()
        enqueue = [pb.EnqueueRequest(queue="q", payload=b"%d" % n, id=b"%d" % n) for n in range(3)]
        response = await sent(call, operations(*enqueue, COMMIT))
        assert response.results[0].enqueue.id == b"0"
        assert list(response.results[3].commit.enqueued) == [pb.ENQUEUE_OUTCOME_INSERTED] * 3
        call = it.stub.Transaction()
        claim = pb.ClaimRequest(queue="q", max_results=3, wait_seconds=10)
        claimed = (await sent(call, operations(claim))).results[0].claim.messages
        by_id = {each.id: each for each in claimed}
        assert set(by_id) == {b"0", b"1", b"2"}
        await sent(
            call,
            operations(
                pb.AcknowledgeRequest(queue="q", attempts=[by_id[b"0"].attempt]),
                pb.RejectRequest(
                    queue="q", attempts=[by_id[b"1"].attempt], dead=True, reason="no such order"
                ),
                COMMIT,
            ),
        )
        assert not await queue.messages()
        assert {each.id for each in await queue.messages("done")} == {"0", "2"}
        [letter] = await queue.dead_letters()
        assert (letter.id, letter.last_error) == ("1", "no such order")


@on_loop
async def test_a_stream_that_ends_without_commit_changes_nothing() -> None:
    async with started() as it:
        call = it.stub.Transaction()
        await sent(call, operations(pb.PutRequest(key=b"k", value=b"v")))
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == Code.OK
        assert await it.db.get(b"k") is None
        assert it.total.transactions == 0


@on_loop
async def test_a_stream_without_a_request_is_no_error() -> None:
    async with started() as it:
        call = it.stub.Transaction()
        await call.done_writing()
        assert await call.code() == Code.OK


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_client_that_vanishes_gives_back_locks_and_claims(how: str) -> None:
    @on_loop
    async def test() -> None:
        async with started() as it:
            queue = await it.db.create_queue("q")
            await it.stub.Enqueue(pb.EnqueueRequest(queue="q", payload=b"1"))
            await it.stub.Send(pb.SendRequest(key=b"inbox", value=b"1"))
            channel = grpc.aio.insecure_channel(it.address)
            call = type(it.stub)(channel).Transaction()
            await sent(
                call,
                operations(
                    ("get_for_update", pb.GetRequest(key=b"k")),
                    pb.ReapRequest(key=b"inbox"),
                    pb.ClaimRequest(queue="q", wait_seconds=10),
                    pb.PutRequest(key=b"k", value=b"v"),
                ),
            )
            assert it.total.memory_bytes > 0
            if how == "cancel":
                call.cancel()
            await channel.close()
            await until(lambda: it.total.transactions == 0)
            async with it.db.begin() as tx:
                assert await asyncio.wait_for(tx.get_for_update(b"k"), 10) is None
                assert len(await tx.reap_queue(b"inbox", wait=10)) == 1
            [message] = await queue.claim(wait=10)
            assert message.epoch == 0  # it was given back uncounted
            assert it.total.memory_bytes == 0

    test()


@on_loop
async def test_a_deadline_ends_a_transaction() -> None:
    async with started() as it:
        call = it.stub.Transaction(timeout=0.2)
        await sent(call, operations(pb.PutRequest(key=b"k", value=b"v")))
        failed = await failure(call.read())
        assert failed.code == Code.DEADLINE_EXCEEDED
        assert failed.detail is None
        await until(lambda: it.total.transactions == 0)
        assert await it.db.get(b"k") is None


@on_loop
async def test_a_call_that_waits_ends_at_its_deadline() -> None:
    async with started() as it:
        call = it.stub.Transaction(timeout=0.2)
        await call.write(operations(pb.ReapRequest(key=b"k", wait_seconds=3600)))
        assert (await failure(call.read())).code == Code.DEADLINE_EXCEEDED
        await until(lambda: it.total.calls == 0)


def test_a_transaction_that_is_left_open_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(transactions, "LOOK_SECONDS", 0.05)

    @on_loop
    async def test() -> None:
        async with started() as it:
            call = it.stub.Transaction()
            request = operations(pb.PutRequest(key=b"k", value=b"v"), timeout_seconds=0.2)
            await sent(call, request)
            failed = await failure(call.read())
            assert failed.code == Code.FAILED_PRECONDITION
            assert failed.detail is not None
            assert failed.detail.type == "TransactionExpired"
            assert failed.detail.nothing_happened
            assert it.total.transactions == 0

    test()


@on_loop
async def test_a_conflict_is_aborted_and_nothing_happened() -> None:
    async with started() as it:
        call = it.stub.Transaction()
        await sent(call, operations(pb.GetRequest(key=b"k")))
        await it.db.put(b"k", b"other")
        await call.write(operations(pb.PutRequest(key=b"k", value=b"mine"), COMMIT))
        failed = await failure(call.read())
        assert failed.code == Code.ABORTED
        assert failed.detail is not None
        assert (failed.detail.type, failed.detail.retryable) == ("TransactionConflict", True)
        assert failed.detail.nothing_happened
        assert await it.db.get(b"k") == b"other"


# --- retries


@on_loop
async def test_a_retry_with_the_id_of_a_committed_transaction_changes_nothing() -> None:
    async with started() as it:
        call = it.stub.Transaction()
        request = operations(pb.IncrementRequest(key=b"n"), COMMIT)
        first = await sent(call, request)
        request.begin.transaction_id = first.transaction_id
        async with started(db=it.db) as other:  # the first gateway may have been lost
            second = await sent(other.stub.Transaction(), request)
            assert second.results[1].commit.timestamp == first.results[1].commit.timestamp
        assert postroom.integer(await it.db.get(b"n")) == 1


@on_loop
async def test_an_id_made_beforehand_makes_a_whole_transaction_repeatable() -> None:
    async with started() as it:
        made = await it.stub.NewTransactionId(pb.NewTransactionIdRequest())
        request = operations(
            pb.IncrementRequest(key=b"n"), COMMIT, transaction_id=made.transaction_id
        )
        for _ in range(3):
            response = await it.stub.Execute(request)
            assert response.transaction_id == made.transaction_id
        assert postroom.integer(await it.db.get(b"n")) == 1


@on_loop
async def test_execute_runs_a_transaction_of_one_request() -> None:
    async with started() as it:
        request = operations(pb.GetRequest(key=b"a"), pb.PutRequest(key=b"a", value=b"1"), COMMIT)
        response = await it.stub.Execute(request)
        assert response.results[2].commit.timestamp
        assert await it.db.get(b"a") == b"1"
        failed = await failure(it.stub.Execute(operations(pb.PutRequest(key=b"b", value=b"1"))))
        assert failed.code == Code.INVALID_ARGUMENT
        assert await it.db.get(b"b") is None


# --- requests that are no transaction


@pytest.mark.parametrize(
    "request_",
    [
        operations(COMMIT, pb.PutRequest(key=b"k", value=b"v")),
        operations(pb.PutRequest(key=b"k" * 8193, value=b"v"), COMMIT),
        operations(pb.PutRequest(key=b"k", value=b"v" * (1 << 20) + b"v"), COMMIT),
        operations(pb.GetRequest(key=b"k", at=1), COMMIT),
        operations(pb.ScanRequest(at=1), COMMIT),
        operations(pb.PutRequest(key=b"k", value=b"v"), COMMIT, transaction_id=b"short"),
        operations(pb.PutRequest(key=b"k", value=b"v"), COMMIT, transaction_id=b"\xff" * 24),
        operations(pb.PutRequest(key=b"k", value=b"v"), COMMIT, timeout_seconds=3600),
        operations(pb.PutRequest(key=b"k", value=b"v"), COMMIT, timeout_seconds=float("nan")),
        operations(pb.ReapRequest(key=b"k", wait_seconds=-1), COMMIT),
        operations(pb.ReapRequest(key=b"k", wait_seconds=float("nan")), COMMIT),
        operations(pb.DeferRequest(), COMMIT),
        operations(pb.SendRequest(key=b"k", deliver_at=pb.Due(seconds=float("nan"))), COMMIT),
        operations(
            pb.SendRequest(key=b"k", deliver_at=pb.Due(unix_milliseconds=(1 << 64) - 1)), COMMIT
        ),
        operations(pb.AcknowledgeRequest(queue="q", attempts=[b"\x93garbage"]), COMMIT),
        operations(pb.RejectRequest(queue="q", ids=[b"a"], uncounted=True), COMMIT),
        operations(pb.EnqueueRequest(queue="", payload=b"1"), COMMIT),
        operations(pb.EnqueueRequest(queue="q", payload=b"1", priority=1000), COMMIT),
        operations(pb.EnqueueRequest(queue="missing", payload=b"1"), COMMIT),
        operations(*[pb.GetRequest(key=b"k")] * 1001),
        pb.TransactionRequest(operations=[pb.Operation()]),
    ],
    ids=lambda request: str(request)[:40].replace("\n", " "),
)
def test_a_wrong_request_is_an_invalid_argument(request_: pb.TransactionRequest) -> None:
    @on_loop
    async def test() -> None:
        async with started() as it:
            call = it.stub.Transaction()
            await call.write(request_)
            failed = await failure(call.read())
            assert failed.code == Code.INVALID_ARGUMENT, failed.message
            assert failed.detail is not None
            assert failed.detail.nothing_happened
            assert not failed.detail.retryable
            assert [pair async for pair in it.db.scan()] == []
            assert it.total.calls == 0

    test()


@on_loop
async def test_a_second_begin_is_refused() -> None:
    async with started() as it:
        call = it.stub.Transaction()
        await sent(call, operations(pb.GetRequest(key=b"k")))
        await call.write(operations(timeout_seconds=1.0))
        assert (await failure(call.read())).code == Code.INVALID_ARGUMENT
