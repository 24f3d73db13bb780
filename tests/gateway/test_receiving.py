"""Receive, Acknowledge, Reject and Extend."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from postroom.gateway import postroom_pb2 as pb
from tests.gateway.gateways import COMMIT, failure, on_loop, operations, sent, started, until

Code = grpc.StatusCode


async def _filled(it: Any, number: int, **settings: Any) -> Any:
    queue = await it.db.create_queue("q", **settings)
    async with it.db.begin() as tx:
        for each in range(number):
            tx.enqueue("q", b"%d" % each, id=b"%d" % each, kind="even" if each % 2 == 0 else "odd")
    return queue


async def _read(call: Any) -> Any:
    return await asyncio.wait_for(call.read(), 30)


async def _is_silent(call: Any) -> bool:
    reading = asyncio.ensure_future(call.read())
    done, _ = await asyncio.wait((reading,), timeout=0.3)
    return not done


@on_loop
async def test_a_queue_pushes_no_more_than_the_credit() -> None:
    async with started() as it:
        queue = await _filled(it, 5)
        call = it.stub.Receive(pb.ReceiveRequest(queue="q", credit=2))
        first, second = await _read(call), await _read(call)
        assert {first.payload, second.payload} == {b"0", b"1"}
        assert first.lease_seconds > 20
        reading = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait((reading,), timeout=0.3)
        assert not done
        acknowledged = pb.AcknowledgeRequest(queue="q", attempts=[first.attempt])
        assert (await it.stub.Acknowledge(acknowledged)).count == 1
        assert (await asyncio.wait_for(reading, 30)).payload == b"2"
        assert len(await queue.messages("done")) == 1
        call.cancel()


@on_loop
async def test_a_commit_that_acknowledges_frees_credit() -> None:
    async with started() as it:
        await _filled(it, 2)
        call = it.stub.Receive(pb.ReceiveRequest(queue="q", credit=1))
        first = await _read(call)
        request = pb.AcknowledgeRequest(queue="q", attempts=[first.attempt])
        await it.stub.Execute(operations(pb.PutRequest(key=b"k", value=b"v"), request, COMMIT))
        assert (await _read(call)).payload == b"1"
        call.cancel()


@on_loop
async def test_a_selection_takes_its_messages_only() -> None:
    async with started() as it:
        await _filled(it, 4)
        request = pb.ReceiveRequest(queue="q", selection=pb.Selection(kinds=["odd"]))
        call = it.stub.Receive(request)
        assert {(await _read(call)).payload, (await _read(call)).payload} == {b"1", b"3"}
        assert await _is_silent(call)
        call.cancel()


@on_loop
async def test_a_rejected_message_comes_again_or_dies() -> None:
    async with started() as it:
        queue = await _filled(it, 1)
        call = it.stub.Receive(pb.ReceiveRequest(queue="q"))
        first = await _read(call)
        reject = pb.RejectRequest(
            queue="q", attempts=[first.attempt], delay_seconds=0, reason="not yet"
        )
        assert (await it.stub.Reject(reject)).count == 1
        second = await _read(call)
        assert (second.epoch, second.last_error) == (1, "not yet")
        reject = pb.RejectRequest(queue="q", attempts=[second.attempt], uncounted=True)
        await it.stub.Reject(reject)
        third = await _read(call)
        assert third.epoch == 1
        await it.stub.Reject(pb.RejectRequest(queue="q", attempts=[third.attempt], dead=True))
        assert [letter.id for letter in await queue.dead_letters()] == ["0"]
        call.cancel()


@on_loop
async def test_an_attempt_that_has_passed_is_a_lost_lease() -> None:
    async with started() as it:
        await _filled(it, 1)
        call = it.stub.Receive(pb.ReceiveRequest(queue="q"))
        first = await _read(call)
        await it.stub.Reject(pb.RejectRequest(queue="q", attempts=[first.attempt], delay_seconds=0))
        await _read(call)
        for late in (
            it.stub.Acknowledge(pb.AcknowledgeRequest(queue="q", attempts=[first.attempt])),
            it.stub.Reject(pb.RejectRequest(queue="q", attempts=[first.attempt])),
            it.stub.Extend(pb.ExtendRequest(queue="q", attempt=first.attempt, seconds=60)),
        ):
            failed = await failure(late)
            assert failed.code == Code.FAILED_PRECONDITION
            assert failed.detail is not None
            assert (failed.detail.type, failed.detail.retryable) == ("LeaseLost", False)
        call.cancel()


@on_loop
async def test_a_message_can_be_held_for_longer() -> None:
    async with started() as it:
        await _filled(it, 1)
        call = it.stub.Receive(pb.ReceiveRequest(queue="q"))
        first = await _read(call)
        extend = pb.ExtendRequest(queue="q", attempt=first.attempt, seconds=3600)
        assert (await it.stub.Extend(extend)).leased_until > first.leased_until
        call.cancel()


@on_loop
async def test_a_message_is_settled_by_its_id() -> None:
    async with started() as it:
        queue = await _filled(it, 2)
        await it.stub.Acknowledge(pb.AcknowledgeRequest(queue="q", ids=[b"0"]))
        request = pb.AcknowledgeRequest(queue="q", ids=[b"1"], kind="even")
        assert (await it.stub.Acknowledge(request)).count == 0
        assert [each.id for each in await queue.messages("done")] == ["0"]


@on_loop
async def test_another_gateway_settles_an_attempt() -> None:
    async with started() as it, started(db=it.db) as other:
        queue = await _filled(it, 2)
        call = it.stub.Receive(pb.ReceiveRequest(queue="q", credit=1))
        first = await _read(call)
        request = pb.AcknowledgeRequest(queue="q", attempts=[first.attempt])
        assert (await other.stub.Acknowledge(request)).count == 1
        assert (await _read(call)).payload == b"1"  # the leader has told the consumer
        assert len(await queue.messages("done")) == 1
        call.cancel()


@on_loop
async def test_a_stream_that_ends_gives_back_what_it_held() -> None:
    async with started() as it:
        queue = await _filled(it, 3, min_backoff=0.1)
        channel = grpc.aio.insecure_channel(it.address)
        call = type(it.stub)(channel).Receive(pb.ReceiveRequest(queue="q"))
        held = [await _read(call) for _ in range(3)]
        await it.stub.Acknowledge(pb.AcknowledgeRequest(queue="q", attempts=[held[0].attempt]))
        await queue.cancel(held[1].id)  # giving back all at once would fail
        await channel.close()
        await until(lambda: not it.gateway.service.deliveries.by_attempt)
        await until(lambda: it.total.memory_bytes == 0)
        [again] = await queue.claim(wait=20)
        assert again.id == held[2].id.decode()
        assert (again.epoch, again.last_error) == (1, "the stream of its consumer has ended")


@on_loop
async def test_a_missing_queue_ends_the_stream() -> None:
    async with started() as it:
        failed = await failure(it.stub.Receive(pb.ReceiveRequest(queue="missing")).read())
        assert failed.code == Code.INVALID_ARGUMENT
        failed = await failure(it.stub.Receive(pb.ReceiveRequest(queue="q", credit=1001)).read())
        assert failed.code == Code.INVALID_ARGUMENT


@on_loop
async def test_a_transaction_settles_a_message_that_was_received() -> None:
    async with started() as it:
        queue = await _filled(it, 1)
        call = it.stub.Receive(pb.ReceiveRequest(queue="q"))
        first = await _read(call)
        tx = it.stub.Transaction()
        done = pb.AcknowledgeRequest(queue="q", attempts=[first.attempt])
        await sent(tx, operations(done, pb.PutRequest(key=b"done", value=b"1"), COMMIT))
        await tx.done_writing()
        assert await tx.code() is grpc.StatusCode.OK, "the gateway forgets messages before that"
        assert len(await queue.messages("done")) == 1
        assert not it.gateway.service.deliveries.by_attempt
        call.cancel()
