"""Results as clients wait for them, near the store and far from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import postroom
from postroom.client.blocking import run_blocking
from postroom.client.codec import resolve
from postroom.client.queues.results import failure_of, packed_result, result_of
from postroom.limits import RESULT_BYTES_MAX, TRACEBACK_CHARACTERS_MAX
from postroom.messaging.queues.queries import ReadResult, ToldResult
from tests.client.hand_driver import RemoteDriver
from tests.client.images import read, restore
from tests.client.queues.enqueueing import enqueue
from tests.client.queues.fakes import FakeSender
from tests.client.stores import Store


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = Store(remote=request.param, codec="msgpack")
    store.db.create_queue("q", ack_wait=600)
    yield store
    store.db.close()


def finish(store: Store, value: object, seconds: float = 3600.0) -> None:
    """Claim the next message, and acknowledge it with a result, as a worker does."""
    (message,) = store.db.queue("q").claim()
    with store.db.begin() as tx:
        tx.queues.keep_result(message, seconds, packed_result(value, message.codec))
        tx.acknowledge("q", message)


def test_a_handle_returns_what_the_task_has_returned(store: Store) -> None:
    handles = [enqueue(store, number) for number in range(3)]
    for each in ({"films": [1, 2.5]}, None, b"bytes"):
        finish(store, each)
    assert [each.result() for each in handles] == [{"films": [1, 2.5]}, None, b"bytes"]
    q = store.db.queue("q")
    assert q.result(handles[0].id, wait=5) == {"films": [1, 2.5]}
    assert q.stats().results == 3


def test_a_handle_has_no_result_before_its_transaction_commits(store: Store) -> None:
    with store.db.begin() as tx:
        handle = tx.enqueue("q", 1)
        with pytest.raises(postroom.Invalid, match="has not committed"):
            handle.result(wait=1)


def test_a_result_that_is_not_there_in_time_is_a_timeout(store: Store) -> None:
    handle = enqueue(store)
    for wait in (None, 0, 2.5):
        with pytest.raises(TimeoutError, match="is not done yet"):
            handle.result(wait=wait)
    assert store.node.sizes()["queue token waits"] == 0


def test_a_missing_message_or_result_is_told(store: Store) -> None:
    enqueue(store, id="1", kind="film")
    q = store.db.queue("q")
    with pytest.raises(postroom.Invalid, match="no message '1' of the kind ''"):
        q.result("1", wait=5)
    q.acknowledge("1")
    with pytest.raises(postroom.Invalid, match="no result of it is kept"):
        q.result("1", kind="film")
    with pytest.raises(postroom.Invalid, match="no queue 'other'"):
        store.db.queue("other").result("1", wait=5)


def test_a_cancelled_message_has_failed(store: Store) -> None:
    handle = enqueue(store)
    store.db.queue("q").cancel(handle.id)
    with pytest.raises(postroom.TaskFailed, match="was cancelled") as failed:
        handle.result()
    assert (failed.value.type, failed.value.traceback) == ("", "")


@pytest.fixture
def remote() -> Iterator[Store]:
    store = Store(remote=True, codec="msgpack")
    store.db.create_queue("q", ack_wait=600)
    yield store
    store.db.close()


def test_a_wait_goes_on_under_the_next_leader(remote: Store) -> None:
    handle = enqueue(remote)
    waiter = remote.driver.start(remote.core.queue("q").result(handle.id, wait=3600))
    remote.restart(after_seconds=1)
    remote.advance(5)
    assert not waiter.done
    finish(remote, "late")
    remote.driver.settle()
    assert waiter.result() == "late"


def test_a_client_that_vanishes_leaves_no_wait_behind(remote: Store) -> None:
    assert isinstance(remote.driver, RemoteDriver)
    handle, q = enqueue(remote), remote.core.queue("q")
    waiters = [remote.driver.start(q.result(handle.id, wait=60)) for _ in range(10)]
    remote.driver.settle()
    assert remote.node.sizes()["queue token waits"] == len(waiters)
    for session in remote.driver._streams.values():
        session.close()
    assert remote.node.sizes()["queue token waits"] == 0


def test_a_wait_goes_on_while_the_store_has_no_leader() -> None:
    sender = FakeSender()
    sender.answers += [postroom.Unavailable("no leader"), postroom.TransactionConflict("")]
    sender.answers.append(ToldResult("returned", b"film"))
    asked = result_of(sender, resolve(None), ReadResult("q", b"1", wait=True), 5.0)
    assert run_blocking(asked) == b"film"
    for wait in (0.0, 5.0):
        sender.answers += [postroom.Unavailable("no leader")] * 1000
        with pytest.raises(postroom.Unavailable):
            run_blocking(result_of(sender, resolve(None), ReadResult("q", b"1"), wait))
    assert 4 <= sender.seconds < 12


def test_the_results_of_a_group_come_in_pages(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr("postroom.messaging.queues.results.LIST_MAX", 2)
    for number in range(5):
        enqueue(store, id=str(number), group="g", kind="film")
        finish(store, number)
    enqueue(store, id="other", group="h")
    finish(store, "other")
    found = list(store.db.queue("q").results("g"))
    assert found == [postroom.TaskResult(str(n), "film", n) for n in range(5)]
    assert list(store.db.queue("q").results("none")) == []


def test_results_travel_in_an_image() -> None:
    store, other = Store(codec="msgpack"), Store(codec="msgpack")
    store.db.create_queue("q")
    handle = enqueue(store, id="1", group="g")
    finish(store, "film")
    restore(other.db, *read(store.db))
    assert other.db.queue("q").result("1") == handle.result() == "film"
    other.advance(3700)
    assert other.db.queue("q").stats().results == 0
    store.db.close()
    other.db.close()


def test_a_result_of_the_largest_size_is_kept_and_a_larger_one_refused(store: Store) -> None:
    codec = store.core.codec
    assert len(packed_result(bytes(RESULT_BYTES_MAX - 3), codec) or b"") == RESULT_BYTES_MAX
    with pytest.raises(postroom.ValueTooLarge, match=f"the limit is {RESULT_BYTES_MAX}; .* key"):
        packed_result(bytes(RESULT_BYTES_MAX - 2), codec)
    with pytest.raises(TypeError):
        packed_result(object(), codec)


def test_a_failure_is_text_of_bounded_size_whatever_was_raised() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Group(ExceptionGroup[Exception]):
        pass

    long = ValueError("x" * 10_000_000 + "\ud800")
    for error in (Odd(), long, Group("many", [ValueError("\ud800")] * 1000)):
        failure = failure_of(error, "reason", None)
        assert len(failure.traceback) <= TRACEBACK_CHARACTERS_MAX
        failure.traceback.encode()
        assert failure.type == type(error).__name__
