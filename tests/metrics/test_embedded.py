"""Metrics of an embedded store."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import postroom
import postroom.aio
import postroom.metrics
from postroom.limits import METRICS_KINDS_MAX, METRICS_QUEUES_MAX
from postroom.messaging.queues.records import QueueLayout
from tests.cluster.harness import eventually
from tests.metrics.scraping import ANSWER_SECONDS, Scraped, collected


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with postroom.open(tmp_path / "data") as opened:
        yield opened


def test_a_store_tells_of_its_node_and_disk(db: postroom.Database) -> None:
    db.put(b"k", b"v")
    told = collected(db)
    assert told.get("up") == told.get("leads") == told.get("has_leader") == 1
    assert told.get("info", version=postroom.__version__, engine="leveldb", node="1") == 1 or (
        told.get("info", version=postroom.__version__, engine="rocksdb", node="1") == 1
    )
    assert told.get("ranges", state="led") == 1
    assert told.get("unreadable") == told.get("writes_refused") == told.get("disk_damaged") == 0
    for name in (
        "elections_total", "proposals_total", "entries_applied_total", "turns_total",
        "turn_seconds_total", "evaluation_seconds_total", "sync_seconds_count",
        "sync_seconds_sum", "log_segments", "log_bytes", "disk_bytes", "disk_free_bytes",
        "disk_reserve_bytes", "descriptors", "descriptors_max", "term",
    ):  # fmt: skip
        assert (told.get(name) or 0) > 0, name


def test_counters_grow_with_what_they_count(db: postroom.Database) -> None:
    before = collected(db)
    for number in range(10):
        db.put(b"k", b"%d" % number)
    after = collected(db)

    def grown(name: str) -> float:
        return (after.get(name) or 0) - (before.get(name) or 0)

    assert grown("proposals_total") >= 10
    assert grown("entries_applied_total") >= 10
    assert grown("sync_seconds_count") >= 10
    assert grown("turns_total") >= 10
    assert 0 < grown("evaluation_seconds_total") < grown("turn_seconds_total")


def test_a_store_tells_of_its_messages(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.enqueue_message(b"inbox", b"now")
        tx.enqueue_message(b"inbox", b"later", deliver_at=3600)
        tx.enqueue_update(postroom.Increment(b"counter"))
    told = collected(db)
    assert told.get("messages_enqueued_total") == 3
    assert told.get("messages_delivered") == 1
    assert told.get("messages_executed_total") == 1
    assert told.get("messages_pending", kind="message") == 1
    assert told.get("messages_unaccounted") == 0
    assert told.get("oldest_due_seconds") == 0
    with db.begin() as tx:
        assert len(tx.reap_queue(b"inbox")) == 1
    assert collected(db).get("messages_consumed_total") == 1


def test_a_message_that_is_kept_from_delivery_becomes_older(db: postroom.Database) -> None:
    driver: Any = db.sender
    with driver._lock:
        driver.node.tasks.stop()  # no service delivers
    with db.begin() as tx:
        tx.enqueue_message(b"inbox", b"v", deliver_at=0.001)
    eventually(lambda: (collected(db).get("oldest_due_seconds") or 0) > 0.05)
    assert collected(db).get("messages_pending", kind="message") == 1


def test_a_store_tells_of_its_queues(db: postroom.Database) -> None:
    queue = db.create_queue("work", max_attempts=2, min_backoff=0.001)
    with db.begin() as tx:
        for number in range(4):
            tx.enqueue(queue.name, b"%d" % number, kind="mail", id=b"%d" % number)
    first, second, third = queue.claim(3)
    told = collected(db)
    assert told.get("queue_messages", queue="work", state="leased") == 3
    assert told.get("queue_messages", queue="work", state="ready") == 1
    assert told.get("queue_consumers", queue="work") == 1
    eventually(lambda: collected(db).get("queue_longest_held_seconds", queue="work"))
    with db.begin() as tx:
        tx.acknowledge("work", first)
    second.reject(dead=True)
    third.reject(delay=3600)
    told = collected(db)
    assert told.get("queue_messages", queue="work", state="dead") == 1
    assert told.get("queue_messages", queue="work", state="scheduled") == 1
    assert told.get("queue_events_total", queue="work", event="fired", range="1") == 3
    assert told.get("queue_events_total", queue="work", event="acknowledged", range="1") == 1
    assert told.get("queue_events_total", queue="work", event="rejected", range="1") == 2
    assert told.get("queue_task_failures_total", queue="work", task="mail", range="1") == 2
    for name in ("lateness", "run"):
        assert told.get(f"queue_{name}_seconds_count", queue="work", range="1") == 3
        assert told.get(f"queue_{name}_seconds_bucket", queue="work", range="1", le="+Inf") == 3
        assert told.get(f"queue_{name}_seconds_bucket", queue="work", range="1", le="4194.304") == 3


def test_an_extended_lease_ends_no_attempt(db: postroom.Database) -> None:
    queue = db.create_queue("work")
    with db.begin() as tx:
        tx.enqueue(queue.name, b"v")
    (message,) = queue.claim(1)
    message.extend(60)
    assert collected(db).get("queue_run_seconds_count", queue="work", range="1") == 0
    with db.begin() as tx:
        tx.acknowledge("work", message)
    assert collected(db).get("queue_run_seconds_count", queue="work", range="1") == 1


def test_the_numbers_of_labels_are_bounded(db: postroom.Database) -> None:
    for number in range(METRICS_QUEUES_MAX + 5):
        db.create_queue(f"queue {number:03}")
    queue = db.queue("queue 000")
    with db.begin() as tx:
        for number in range(METRICS_KINDS_MAX + 5):
            tx.enqueue(queue.name, b"v", kind=f"kind {number}")
    for message in queue.claim(METRICS_KINDS_MAX + 5):
        message.reject(dead=True)
    told = collected(db)
    assert told.get("queues", state="sound") == METRICS_QUEUES_MAX + 5
    assert len(told.labels("queue_consumers", "queue")) == METRICS_QUEUES_MAX
    assert len(told.labels("queue_task_failures_total", "task")) == METRICS_KINDS_MAX + 1
    assert told.get("queue_task_failures_total", queue="queue 000", task="other", range="1") == 5


def test_queues_that_are_not_in_use_tell_their_counters(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "data") as db:
        db.create_queue("work")
        with db.begin() as tx:
            tx.enqueue("work", b"v")
    with postroom.open(tmp_path / "data") as db:
        db.put(b"k", b"v")
        assert collected(db).get("queue_messages", queue="work", state="ready") == 1


def test_the_figures_of_a_queue_are_sums_over_the_ranges_of_a_node() -> None:
    with postroom.open(":memory:") as db:
        db.split(b"m")
        queue = db.create_queue("work")
        for id_ in ("a", "b", "y", "z"):
            with db.begin() as tx:
                tx.enqueue("work", b"", id=id_, kind="mail")
        for message in queue.claim(3):
            message.reject(dead=True)
        told = collected(db)
        assert told.get("queues", state="sound") == 1
        assert told.get("queue_messages", queue="work", state="ready") == 1
        assert told.get("queue_messages", queue="work", state="dead") == 3
        for name, labels, number in (
            ("events_total", {"event": "enqueued"}, 4),
            ("lateness_seconds_count", {}, 3),
            ("task_failures_total", {"task": "mail"}, 3),
        ):
            ranges = told.labels(f"queue_{name}", "range")
            assert ranges == {"1", "2"}
            found = [
                told.get(f"queue_{name}", queue="work", range=each, **labels) for each in ranges
            ]
            assert sum(filter(None, found)) == number


def test_a_store_with_several_ranges_tells_the_sums(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "data") as db:
        for key in (b"a", b"p"):
            with db.begin() as tx:
                tx.enqueue_message(key, b"v")
        db.split(b"m")
        eventually(lambda: collected(db).get("ranges", state="led") == 2)
        with db.begin() as tx:
            tx.enqueue_message(b"z", b"v")
        told = collected(db)
        assert told.get("messages_enqueued_total") == 3
        assert told.get("messages_delivered") == 3
        assert told.get("messages_unaccounted") == 0


def test_names_of_queues_and_kinds_are_escaped(db: postroom.Database) -> None:
    name = 'a "queue"\n\\# HELP postroom_up no'
    queue = db.create_queue(name)
    registry = CollectorRegistry()
    registry.register(postroom.metrics.collector(db))
    assert registry.get_sample_value("postroom_queue_consumers", {"queue": queue.name}) == 0


def test_a_damaged_queue_leaves_the_figures_of_others(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "data") as db:
        for name in ("broken", "sound"):
            db.create_queue(name)
            with db.begin() as tx:
                tx.enqueue(name, b"v")
    with postroom.open(tmp_path / "data") as db:
        db.put(b"k", b"v")
        driver: Any = db.sender
        with driver._lock:
            queues = driver.node.root.messaging.queues
            number = queues._directory.defined["broken"].number
            counters = QueueLayout(1, number).counters
            driver.node.engine.write({counters: b"torn"}, sync=True)
        told = collected(db)
        assert told.get("up") == told.get("unreadable") == 1
        assert told.get("queue_messages", queue="sound", state="ready") == 1
        assert told.get("queue_messages", queue="broken", state="ready") is None
        with pytest.raises(postroom.StoreCorrupted):
            db.queue("broken").stats()
        told = collected(db)
        assert told.get("queues", state="damaged") == 1
        assert told.get("unreadable") == 0


def test_a_store_without_room_tells_why(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "data", disk_reserve_bytes=1 << 60) as db:
        driver: Any = db.sender
        driver.patience_seconds = 0.1
        eventually(lambda: refused(db))
        told = eventually(lambda: collected(db))
        assert told.get("writes_refused") == 1
        assert (told.get("disk_free_bytes") or 0) < (told.get("disk_reserve_bytes") or 0)
        assert (told.get("requests_refused_total", reason="no_room") or 0) > 0


def refused(db: postroom.Database) -> bool:
    try:
        db.put(b"k", b"v")
    except postroom.Unavailable:
        return True
    return False


def test_a_closed_store_is_not_up(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "data") as db:
        collector = postroom.metrics.collector(db)
    told = Scraped(collector.collect())
    assert told.get("up") == 0
    assert told.get("term") is None


def test_a_node_takes_turns_between_two_groups_of_figures(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver: Any = db.sender
    look, looks = driver.look, []

    def look_and_put(read: Any) -> None:
        look(read)
        db.put(b"k", b"v")  # the lock is free
        looks.append(read)

    monkeypatch.setattr(driver, "look", look_and_put)
    assert collected(db).get("up") == 1
    assert len(looks) > 5


def down(collector: postroom.metrics.StoreCollector) -> Scraped | None:
    """Return what is told of a node that does not answer; ``None``: it answers."""
    told = Scraped(collector.collect())
    return told if told.get("up") == 0 else None


def test_a_node_that_hangs_lets_the_last_figures_stand(db: postroom.Database) -> None:
    db.put(b"k", b"v")
    collector = postroom.metrics.collector(db)
    assert Scraped(collector.collect()).get("up") == 1
    driver: Any = db.sender
    with driver._lock:
        number = threading.active_count()
        told = eventually(lambda: down(collector))
        begun = time.monotonic()
        down(collector)
        assert time.monotonic() - begun < ANSWER_SECONDS
        assert threading.active_count() == number + 1
        assert told.get("term") == 1
        assert (told.get("sample_age_seconds") or 0) > 1


def test_a_store_on_an_event_loop_is_read_there_and_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with await postroom.aio.open(tmp_path / "data") as db:
            await db.put(b"k", b"v")
            assert collected(db).get("up") == 1
            told = await asyncio.to_thread(collected, db)
            assert told.get("up") == told.get("leads") == 1
            collector = postroom.metrics.collector(db)
        assert Scraped(await asyncio.to_thread(collector.collect)).get("up") == 0

    asyncio.run(main())


def test_a_store_in_memory_has_metrics() -> None:
    with postroom.open(":memory:") as db:
        db.put(b"k", b"v")
        told = collected(db)
        assert told.get("up") == 1
        assert told.get("log_segments") == told.get("unreadable") == 0


def test_a_store_of_another_process_is_refused() -> None:
    other: Any = object()
    with pytest.raises(TypeError, match="serve --metrics"):
        postroom.metrics.collector(other)
