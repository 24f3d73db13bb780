"""Spans of commits, sends and receives, and the context that messages carry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace

import postroom
import postroom.aio
from postroom import tracing
from postroom.limits import CONTEXT_CHARACTERS_MAX, HEADERS_BYTES_MAX, MESSAGE_BYTES_MAX
from postroom.tracing.context import links_to
from tests.tracing.spans import Spans, id_of, linked, parent_of

TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def db(spans: Spans) -> Iterator[postroom.Database]:
    with postroom.open(":memory:") as db:
        db.create_queue("mail")
        assert tracing.instrument(db, tracer_provider=spans.provider)
        yield db


def test_a_commit_has_a_span_and_its_sends_have_one_below_it(
    db: postroom.Database, spans: Spans
) -> None:
    with db.begin() as tx:
        tx.put(b"order", b"paid")
        tx.enqueue("mail", b"secret")
        tx.enqueue("mail", b"secret")
        identity = tx.id
    transaction, send = spans.only("transaction"), spans.only("send mail")
    assert transaction.attributes == {
        "db.system.name": "postroom",
        "db.operation.name": "commit",
        "postroom.transaction.id": identity.hex(),
        "postroom.transaction.reads": 0,
        "postroom.transaction.writes": 3,
        "postroom.transaction.timestamp": tx.commit_timestamp,
    }
    assert transaction.kind is trace.SpanKind.CLIENT
    assert parent_of(send) == id_of(transaction)
    assert send.kind is trace.SpanKind.PRODUCER
    assert send.attributes == {
        "messaging.system": "postroom",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.batch.message_count": 2,
    }
    assert transaction.start_time <= send.start_time <= send.end_time <= transaction.end_time


def test_messages_carry_the_context_of_their_send(db: postroom.Database, spans: Spans) -> None:
    with db.begin() as tx:
        tx.enqueue_message(b"inbox", b"1", headers={"mine": 1})
        tx.enqueue("mail", b"2")
        tx.when_done("mail", "none", postroom.Enqueue("mail", b"3"))
    send = spans.only("send").get_span_context()
    carried = f"00-{send.trace_id:032x}-{send.span_id:016x}-{send.trace_flags:02x}"
    with db.begin() as tx:
        assert tx.reap_queue(b"inbox")[0].headers == {"mine": 1, "traceparent": carried}
    claimed = db.queue("mail").claim(2)
    assert [each.headers for each in claimed] == [{"traceparent": carried}] * 2


def test_a_context_of_the_application_stays(db: postroom.Database, spans: Spans) -> None:
    with db.begin() as tx:
        tx.enqueue_message(b"inbox", b"1", headers={"traceparent": TRACE})
    assert db.peek(b"inbox")[0].headers == {"traceparent": TRACE}


def test_a_receive_is_linked_to_the_senders(db: postroom.Database, spans: Spans) -> None:
    for name in (b"1", b"2"):
        with db.begin() as tx:
            tx.enqueue_message(b"inbox", name)
    with db.begin() as tx:
        assert len(tx.reap_queue(b"inbox")) == 2
        assert not tx.reap_queue(b"empty")
    received = spans.only("receive inbox")
    assert linked(received) == [id_of(each) for each in spans.named("send inbox")]
    assert received.attributes is not None
    assert received.attributes["messaging.destination.name"] == "b'inbox'"
    assert received.attributes["messaging.operation.type"] == "receive"
    assert received.attributes["messaging.batch.message_count"] == 2


def test_a_claim_is_linked_to_the_sender(db: postroom.Database, spans: Spans) -> None:
    with db.begin() as tx:
        tx.enqueue("mail", b"1")
    assert len(db.queue("mail").claim(5)) == 1
    assert linked(spans.only("receive mail")) == [id_of(spans.only("send mail"))]


HOSTILE: list[dict[str, Any]] = [
    {"traceparent": "no context"},
    {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
    {"traceparent": b"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"},
    {"traceparent": 17, "tracestate": None},
    {"traceparent": "00-" + "f" * 60_000},
]


@pytest.mark.parametrize("headers", HOSTILE, ids=range(len(HOSTILE)))
def test_a_malformed_context_is_ignored(
    db: postroom.Database, spans: Spans, headers: dict[str, Any]
) -> None:
    with db.begin() as tx:
        tx.enqueue_message(b"inbox", b"1", headers=headers)
    with db.begin() as tx:
        assert tx.reap_queue(b"inbox")[0].headers == headers
    assert linked(spans.only("receive inbox")) == []


def test_a_huge_state_is_ignored_and_its_context_is_not(
    db: postroom.Database, spans: Spans
) -> None:
    with db.begin() as tx:
        headers = {"traceparent": TRACE, "tracestate": "a=" + "x" * 60_000}
        tx.enqueue_message(b"inbox", b"1", headers=headers)
    with db.begin() as tx:
        tx.reap_queue(b"inbox")
    link = spans.only("receive inbox").links[0]
    assert link.context.span_id == 0x0123456789ABCDEF
    assert not link.context.trace_state


def test_huge_headers_are_kept_from_propagators(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def extract(carrier: Any, context: Any) -> Any:
        given.append(carrier)
        return context

    monkeypatch.setattr("opentelemetry.propagate.extract", extract)
    assert links_to([{"b3": "x" * (CONTEXT_CHARACTERS_MAX + 1), "small": "x"}]) == []
    assert given == [{"small": "x"}]


@pytest.mark.parametrize(
    ("payload", "header"), [(MESSAGE_BYTES_MAX - 20, 0), (1, HEADERS_BYTES_MAX - 20)]
)
def test_a_message_without_room_goes_without_a_context(
    db: postroom.Database, payload: int, header: int
) -> None:
    headers = {"h": b"h" * header} if header else None
    with db.begin() as tx:
        tx.enqueue_message(b"inbox", b"x" * payload, headers=headers)
    assert "traceparent" not in db.peek(b"inbox")[0].headers


def test_a_transaction_that_becomes_too_large_commits_without_contexts(
    db: postroom.Database, spans: Spans
) -> None:
    with db.begin() as tx:
        for _ in range(4100):  # with contexts there is room for 4,053 of these
            tx.enqueue_message(b"inbox", b"x" * 4000)
    assert all(not each.headers for each in db.peek(b"inbox", limit=10_000))
    assert spans.only("transaction").status.is_ok


def test_a_lost_transaction_has_an_error(db: postroom.Database, spans: Spans) -> None:
    tx = db.begin()
    tx.get(b"key")
    db.put(b"key", b"other")
    spans.clear()
    tx.put(b"key", b"mine")
    with pytest.raises(postroom.TransactionConflict):
        tx.commit()
    span = spans.only("transaction")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "TransactionConflict"


def test_spans_of_an_asyncio_store_are_below_the_current_one(spans: Spans) -> None:
    async def use() -> None:
        async with await postroom.aio.open(":memory:") as db:
            tracing.instrument(db, tracer_provider=spans.provider)
            with spans.provider.get_tracer("test").start_as_current_span("request"):
                async with db.begin() as tx:
                    tx.enqueue_message(b"inbox", b"1")
            async with db.begin() as tx:
                await tx.reap_queue(b"inbox")

    asyncio.run(use())
    first = spans.named("transaction")[0]
    assert parent_of(first) == id_of(spans.only("request"))
    assert linked(spans.only("receive inbox")) == [id_of(spans.only("send inbox"))]


def test_a_second_call_changes_nothing(db: postroom.Database, spans: Spans) -> None:
    tracing.instrument(db, tracer_provider=spans.provider)
    db.put(b"key", b"value")
    spans.only("transaction")


def test_other_things_are_refused() -> None:
    with pytest.raises(TypeError, match="a database or a worker"):
        tracing.instrument("db")


def calls_of_a_put(db: postroom.Database) -> int:
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    db.put(b"key", b"value")
    sys.setprofile(counted)
    try:
        db.put(b"key", b"value")
    finally:
        sys.setprofile(None)
    return count


def test_a_database_costs_nothing_more_without_a_configured_sdk() -> None:
    with postroom.open(":memory:") as db:
        before = min(calls_of_a_put(db) for _ in range(5))
        assert not tracing.instrument(db)
        assert min(calls_of_a_put(db) for _ in range(5)) == before


def test_a_store_that_is_not_instrumented_imports_nothing_of_opentelemetry() -> None:
    program = (
        "import sys, postroom, postroom.aio\n"
        "with postroom.open(':memory:') as db: db.put(b'key', b'value'); postroom.Worker(db)\n"
        "print([each for each in sys.modules if each.startswith('opentelemetry')])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "[]\n"
