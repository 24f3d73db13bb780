"""Spans of the calls of a worker's functions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace

import postroom
import postroom.aio
from postroom import tracing
from tests.tracing.spans import Spans, id_of, linked, parent_of

SYNC_FORMS = ["thread", "coroutine"]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def sync_store(spans: Spans, function: Any, register: Any) -> None:
    """Run a function as a task on a synchronous store, after a message was sent to it."""
    with postroom.open(":memory:") as db:
        db.create_queue("mail")
        worker = postroom.Worker(db)
        register(worker)(function)
        assert tracing.instrument(worker, tracer_provider=spans.provider)
        with db.begin() as tx:
            tx.enqueue("mail", b"1")
            tx.enqueue_message(b"inbox", b"1")
        spans.clear()
        worker.run_until_idle()


def of_form(form: str, spans: Spans, senders: list[int]) -> Any:
    """Return a function of a form, which writes, makes a span, and notes the sender's span."""

    def plain(message: Any, tx: Any) -> None:
        senders.append(int(message.headers["traceparent"].split("-")[2], 16))
        with spans.provider.get_tracer("test").start_as_current_span("work"):
            tx.put(b"done", b"yes")

    async def coroutine(message: Any, tx: Any) -> None:
        plain(message, tx)

    return plain if form == "thread" else coroutine


@pytest.mark.parametrize("form", SYNC_FORMS)
@pytest.mark.parametrize("destination", ["mail", "inbox"])
def test_a_task_run_is_linked_to_its_sender_and_contains_its_work(
    spans: Spans, form: str, destination: str
) -> None:
    sent: list[int] = []

    def register(worker: Any) -> Any:
        return worker.task("mail") if destination == "mail" else worker.inbox(b"inbox")

    sync_store(spans, of_form(form, spans, sent), register)
    process = spans.only(f"process {destination}")
    assert linked(process) == [sent[-1]]
    assert process.kind is trace.SpanKind.CONSUMER
    assert process.parent is None
    assert process.attributes is not None
    assert process.attributes["messaging.operation.type"] == "process"
    assert parent_of(spans.only("work")) == id_of(process)
    assert id_of(process) in [parent_of(each) for each in spans.named("transaction")]


@pytest.mark.parametrize("form", SYNC_FORMS)
def test_a_task_run_on_an_asyncio_store_contains_its_work(spans: Spans, form: str) -> None:
    async def use() -> None:
        async with await postroom.aio.open(":memory:") as db:
            await db.create_queue("mail")
            worker = postroom.aio.Worker(db)
            worker.task("mail")(of_form(form, spans, []))
            tracing.instrument(worker, tracer_provider=spans.provider)
            async with db.begin() as tx:
                tx.enqueue("mail", b"1")
            await worker.run_until_idle()

    asyncio.run(use())
    process = spans.only("process mail")
    assert linked(process) == [id_of(spans.only("send mail"))]
    assert parent_of(spans.only("work")) == id_of(process)
    assert id_of(process) in [parent_of(each) for each in spans.named("transaction")]


def test_a_failed_run_has_an_error(spans: Spans) -> None:
    def fails(message: Any, tx: Any) -> None:
        raise postroom.Discard("no such order")

    sync_store(spans, fails, lambda worker: worker.task("mail"))
    process = spans.only("process mail")
    assert process.status.status_code is trace.StatusCode.ERROR


def test_a_batch_of_an_inbox_has_one_span_with_a_link_for_each_message(spans: Spans) -> None:
    with postroom.open(":memory:") as db:
        worker = postroom.Worker(db)
        worker.inbox(b"", batch=10)(lambda messages, tx: None)
        tracing.instrument(worker, tracer_provider=spans.provider)
        for _ in range(3):
            with db.begin() as tx:
                tx.enqueue_message(b"inbox", b"1")
        worker.run_until_idle()
    assert linked(spans.only("process inbox")) == [
        id_of(each) for each in spans.named("send inbox")
    ]


def test_a_run_that_lost_has_a_span_for_each_try(spans: Spans) -> None:
    tries = 0

    with postroom.open(":memory:") as db:
        worker = postroom.Worker(db)

        @worker.inbox(b"inbox")
        def task(message: Any, tx: Any) -> None:
            nonlocal tries
            tries += 1
            tx.get(b"key")
            if tries == 1:
                db.put(b"key", b"other")
            tx.put(b"key", b"mine")

        tracing.instrument(worker, tracer_provider=spans.provider)
        with db.begin() as tx:
            tx.enqueue_message(b"inbox", b"1")
        worker.run_until_idle()
    assert tries == 2
    assert len(spans.named("process inbox")) == 2


@pytest.mark.parametrize("form", SYNC_FORMS)
def test_a_traced_task_keeps_its_result(spans: Spans, form: str) -> None:
    def plain(message: Any, tx: Any) -> bytes:
        return b"result"

    async def coroutine(message: Any, tx: Any) -> bytes:
        return b"result"

    async def use() -> None:
        async with await postroom.aio.open(":memory:") as db:
            await db.create_queue("mail")
            worker = postroom.aio.Worker(db)
            task = worker.task("mail", keep_result=60)(plain if form == "thread" else coroutine)
            assert tracing.instrument(worker, tracer_provider=spans.provider)
            async with db.begin() as tx:
                handle = task.enqueue(tx, b"1")
            await worker.run_until_idle()
            assert await handle.result() == b"result"

    asyncio.run(use())


def test_a_worker_may_get_its_database_after_it_is_instrumented(spans: Spans) -> None:
    worker = postroom.Worker()
    worker.task("mail")(lambda message, tx: None)
    tracing.instrument(worker, tracer_provider=spans.provider)
    with postroom.open(":memory:") as db:
        db.create_queue("mail")
        worker.bind(db)
        with db.begin() as tx:
            tx.enqueue("mail", b"1")
        worker.run_until_idle()
    assert linked(spans.only("process mail")) == [id_of(spans.only("send mail"))]
