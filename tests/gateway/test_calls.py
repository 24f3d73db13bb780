"""The single calls, Scan and Watch."""

from __future__ import annotations

import datetime
from typing import Any

import grpc
import pytest

import postroom
import postroom.aio
from postroom.gateway import postroom_pb2 as pb
from tests.gateway.gateways import on_loop, operations, sent, started

DAY_SECONDS = 86_400.0


@on_loop
async def test_keys_are_put_read_and_deleted() -> None:
    async with started() as it:
        absent = await it.stub.Get(pb.GetRequest(key=b"k"))
        assert not absent.HasField("value")
        await it.stub.Put(pb.PutRequest(key=b"k", value=b""))
        before = await it.db.now()
        assert (await it.stub.Get(pb.GetRequest(key=b"k"))).HasField("value")
        await it.stub.Delete(pb.DeleteRequest(key=b"k"))
        assert not (await it.stub.Get(pb.GetRequest(key=b"k"))).HasField("value")
        assert (await it.stub.Get(pb.GetRequest(key=b"k", at=before))).HasField("value")


@on_loop
async def test_a_scan_returns_all_pairs_in_pages() -> None:
    async with started() as it:
        async with it.db.begin() as tx:
            for number in range(2500):
                tx.put(b"k%04d" % number, b"v")
        pages = [page async for page in it.stub.Scan(pb.ScanRequest(start=b"k", end=b"l"))]
        assert len(pages) > 2
        keys = [pair.key for page in pages for pair in page.pairs]
        assert keys == [b"k%04d" % number for number in range(2500)]
        last = it.stub.Scan(pb.ScanRequest(limit=2, reverse=True))
        assert [pair.key for page in [p async for p in last] for pair in page.pairs] == [
            b"k2499",
            b"k2498",
        ]


@on_loop
async def test_a_scan_at_a_timestamp_shows_that_moment() -> None:
    async with started() as it:
        await it.db.put(b"a", b"1")
        before = await it.db.now()
        await it.db.put(b"b", b"2")
        pages = [page async for page in it.stub.Scan(pb.ScanRequest(at=before))]
        assert [pair.key for page in pages for pair in page.pairs] == [b"a"]


@on_loop
async def test_an_increment_adds_one_unless_it_says_more() -> None:
    async with started() as it:
        assert (await it.stub.Increment(pb.IncrementRequest(key=b"n"))).sum == 1
        assert (await it.stub.Increment(pb.IncrementRequest(key=b"n", by=-5))).sum == -4
        assert (await it.stub.Increment(pb.IncrementRequest(key=b"n", by=0))).sum == -4
        assert postroom.integer(await it.db.get(b"n")) == -4


@on_loop
async def test_a_message_arrives_with_its_headers() -> None:
    headers = {
        "text": pb.HeaderValue(text="t"),
        "bytes": pb.HeaderValue(bytes=b"b"),
        "integer": pb.HeaderValue(integer=-1),
        "number": pb.HeaderValue(number=0.5),
        "boolean": pb.HeaderValue(boolean=True),
        "null": pb.HeaderValue(),
    }
    async with started() as it:
        answer = await it.stub.Send(pb.SendRequest(key=b"k", value=b"v", headers=headers))
        [message] = await it.db.peek(b"k")
        assert message.sent_at == answer.timestamp
        assert message.headers == {
            "text": "t", "bytes": b"b", "integer": -1, "number": 0.5, "boolean": True, "null": None,
        }  # fmt: skip
        call = it.stub.Transaction()
        response = await sent(call, operations(pb.PeekRequest(key=b"k")))
        [told] = response.results[0].inbox.messages
        assert dict(told.headers) == headers
        assert (told.id, told.value, told.sent_at) == (message.id, b"v", message.sent_at)
        call.cancel()


@on_loop
async def test_a_message_may_be_sent_for_later() -> None:
    async with started() as it:
        moment = (await it.db.now()).datetime + datetime.timedelta(days=1)
        for due in (
            pb.Due(seconds=DAY_SECONDS),
            pb.Due(unix_milliseconds=round(moment.timestamp() * 1000)),
        ):
            await it.stub.Send(pb.SendRequest(key=b"k", value=b"v", deliver_at=due))
        assert not await it.db.peek(b"k")
        for each in await it.db.scheduled():
            assert abs((each.due.datetime - moment).total_seconds()) < 60


@on_loop
async def test_enqueueing_tells_what_became_of_the_message() -> None:
    async with started() as it:
        await it.db.create_queue("q", on_duplicate="replace")
        request = pb.EnqueueRequest(
            queue="q", payload=b"1", id=b"a", deliver_at=pb.Due(seconds=DAY_SECONDS)
        )
        assert (await it.stub.Enqueue(request)).outcome == pb.ENQUEUE_OUTCOME_INSERTED
        assert (await it.stub.Enqueue(request)).outcome == pb.ENQUEUE_OUTCOME_REPLACED
        await it.db.queue("q").update(on_duplicate="ignore")
        assert (await it.stub.Enqueue(request)).outcome == pb.ENQUEUE_OUTCOME_IGNORED
        made_up = await it.stub.Enqueue(pb.EnqueueRequest(queue="q", payload=b"2"))
        message = await it.db.queue("q").get(made_up.id)
        assert message is not None
        assert message.payload == b"2"


@on_loop
async def test_the_status_has_the_counters() -> None:
    async with started() as it:
        await it.stub.Send(pb.SendRequest(key=b"k", value=b"v"))
        status = await it.stub.Status(pb.StatusRequest())
        assert (status.node_id, status.enqueued, status.delivered) == (1, 1, 1)
        assert status.timestamp > 0
        assert "dispatcher" in {each.name for each in status.services}


@on_loop
async def test_a_watch_shows_changes_and_goes_on_after_one_of_them() -> None:
    async with started() as it:
        call = it.stub.Watch(pb.WatchRequest(start=b"k", end=b"l"))
        first = await call.read()
        assert first.HasField("after")
        assert not first.changes
        await it.db.put(b"k1", b"1")
        await it.db.delete(b"k1")
        await it.db.put(b"other", b"")
        put, deleted = (await call.read()).changes[0], (await call.read()).changes[0]
        assert (put.key, put.value) == (b"k1", b"1")
        assert not deleted.HasField("value")
        call.cancel()
        again = it.stub.Watch(pb.WatchRequest(start=b"k1", after=put.timestamp))
        await again.read()
        assert (await again.read()).changes[0].timestamp == deleted.timestamp
        again.cancel()


@on_loop
async def test_the_result_of_a_task_is_returned_or_told_as_a_failure() -> None:
    async with started() as it:
        await it.db.create_queue("q")
        worker = postroom.aio.Worker(it.db)

        @worker.task("q", "film", keep_result=60)
        async def task(message: postroom.aio.QueueMessage, tx: postroom.aio.Transaction) -> Any:
            if message.payload == b"bad":
                raise postroom.Discard("no film \ud800")
            return message.payload or None

        for name in (b"good", b"bad", b""):
            id_ = name or b"none"
            await it.stub.Enqueue(pb.EnqueueRequest(queue="q", payload=name, id=id_, kind="film"))
        ask = pb.ResultRequest(queue="q", id=b"good", kind="film")
        assert (await it.stub.Result(ask)).outcome == pb.RESULT_OUTCOME_PENDING
        ask.wait_seconds = 30
        waiting = it.stub.Result(ask)
        assert await worker.run_until_idle() == 3
        good = await waiting
        assert (good.outcome, good.value) == (pb.RESULT_OUTCOME_RETURNED, b"good")
        none = await it.stub.Result(pb.ResultRequest(queue="q", id=b"none", kind="film"))
        assert (none.outcome, none.HasField("value")) == (pb.RESULT_OUTCOME_RETURNED, False)
        bad = await it.stub.Result(pb.ResultRequest(queue="q", id=b"bad", kind="film"))
        assert bad.outcome == pb.RESULT_OUTCOME_FAILED
        assert (bad.failure.type, bad.failure.reason) == ("Discard", "no film \\ud800")
        assert "in task" in bad.failure.traceback
        with pytest.raises(grpc.aio.AioRpcError, match="there is no message"):
            await it.stub.Result(pb.ResultRequest(queue="q", id=b"other", kind="film"))
