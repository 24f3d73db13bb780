"""The log of slow and lost transactions."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.limits import LOCK_WAIT_SECONDS_MAX
from postroom.log_once import BURST_LINES
from postroom.ranges.calls import Call
from postroom.ranges.requests import Now, Put
from postroom.ranges.settings import SLOW, ChangeSetting
from postroom.ranges.slow_log import TimedCall
from tests.client.stores import Store
from tests.remote.streams import Streams
from tests.server.hosting import ThreeNodes


@pytest.fixture
def store(caplog: pytest.LogCaptureFixture) -> Iterator[Store]:
    caplog.set_level(logging.WARNING, "postroom.slow")
    store = Store(slow_seconds=0.5)
    yield store
    store.db.close()


def waiting_commit(store: Store, seconds: float, key: bytes = b"key") -> None:
    """Commit to a key that another transaction has locked, and lets go after a time."""
    holder = store.db.begin()
    holder.get_for_update(key)
    late = store.start(store.core.put(key, b"secret"))
    store.advance(seconds)
    holder.rollback()
    store.driver.settle()
    late.result()


def test_a_commit_that_waited_for_a_lock_is_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    waiting_commit(store, 2.0, b"order/17\n and a long rest that nobody needs")
    (line,) = caplog.messages
    said = re.fullmatch(
        r"slow: commit at (.+) of transaction [0-9a-f]{32} took 2\.\d+ s: "
        r"2\.\d+ s for the lock of (.+), 0\.\d+ s for commits of others, 0\.\d+ s for the sync",
        line,
    )
    assert said is not None, line
    assert said[1] == said[2] == r"b'order/17\n and a '… (43 bytes)"
    assert "secret" not in line


def test_a_lock_that_was_waited_for_is_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    holder, second = store.db.begin(), store.core.begin()
    holder.get_for_update(b"key")
    waiting = store.start(second.get_for_update(b"key"))
    store.advance(1.0)
    holder.rollback()
    store.driver.settle()
    waiting.result()
    (line,) = caplog.messages
    assert line.startswith("slow: lock of b'key' of transaction ")
    assert "for the lock of b'key'" in line


def test_a_fast_commit_is_not_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.db.put(b"key", b"value")
    waiting_commit(store, 0.25)
    assert caplog.messages == []


def lose(store: Store, key: bytes) -> None:
    tx = store.db.begin()
    tx.get(key)
    store.db.put(key, b"other")
    tx.put(key, b"mine")
    with pytest.raises(postroom.TransactionConflict):
        tx.commit()


def test_a_conflict_is_logged_with_its_key(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    lose(store, b"key")
    (line,) = caplog.messages
    assert line.startswith("conflict at b'key': commit at b'key' of transaction ")
    assert "has lost to another one" in line


def test_a_conflict_that_is_repeated_is_logged_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        lose(store, b"key")
    assert len(caplog.messages) == 1


def test_many_slow_commits_make_few_lines_and_the_others_are_counted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    holder = store.db.begin()
    holder.get_for_update(b"key")
    late = [store.start(store.core.put(b"key", b"x")) for _ in range(1000)]
    store.advance(1.0)
    holder.rollback()
    store.driver.settle()
    for each in late:
        each.result()
    assert len(caplog.messages) == BURST_LINES
    store.advance(11.0)
    waiting_commit(store, 1.0)
    assert caplog.messages[BURST_LINES] == f"{1000 - BURST_LINES} more lines of this kind left out"


def timed(*times: float, has_peers: bool) -> TimedCall:
    """Return a call whose clock shows these times, one after the other."""
    clock = iter(times)
    call = Call(Put(b"key", b"value"))
    return TimedCall(call, lambda: next(clock), lambda *_: None, has_peers=has_peers)


def test_a_commit_in_a_larger_group_waits_for_a_majority() -> None:
    call = timed(1.0, has_peers=True)
    call.proposed_at = 2.0
    assert call.waits(4.0) == "1.000 s for commits of others, 2.000 s for a majority"


def test_the_sync_of_the_leader_is_told_apart_from_the_majority() -> None:
    call = timed(1.0, has_peers=True)
    call.proposed_at, call.synced_at = 2.0, 2.5
    assert call.waits(4.0) == (
        "1.000 s for commits of others, 0.500 s for the sync, 1.500 s for a majority"
    )


def test_a_leader_takes_the_time_of_its_sync(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "postroom.slow")
    nodes = ThreeNodes(b"")
    nodes.lead(1, 1)
    client = Streams(nodes)
    client.ask(Now())
    nodes.ask(1, ChangeSetting(SLOW, 0.0))
    nodes.until(lambda: nodes.nodes[1].slow_log.is_on)
    client.put(1, b"key", b"value")
    (line,) = caplog.messages
    assert re.search(r"others, 0\.000 s for the sync, 0\.00\d s for a majority$", line), line
    assert nodes.nodes[1].slow_log.proposed == []
    nodes.close()


def test_a_commit_that_was_refused_in_line_has_waited_for_the_lock_until_then() -> None:
    call = timed(1.0, 3.0, has_peers=False)
    call.proposed_at = 2.0  # with others in its turn, before it stood in line
    call.token = b"key"
    assert call.waits(7.0) == (
        "4.000 s for the lock of b'key', 2.000 s for commits of others, 0.000 s for the sync"
    )


def test_a_call_that_has_ended_is_not_kept(store: Store) -> None:
    waiting_commit(store, 1.0)
    lose(store, b"key")
    holder = store.db.begin()
    holder.get_for_update(b"key")
    store.start(store.core.put(b"key", b"x")).cancel()
    store.driver.settle()
    holder.rollback()
    store.driver.settle()
    assert store.node.slow_log.timed == {}


def test_a_call_that_is_cancelled_is_not_kept() -> None:
    async def use() -> None:
        async with await postroom.aio.open(":memory:", slow=0.5) as db:
            sender: Any = db.sender
            timed = sender.node.slow_log.timed
            holder = db.begin()
            await holder.get_for_update(b"key")
            waiting = asyncio.ensure_future(db.put(b"key", b"x"))
            while not timed:
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            while timed:
                await asyncio.sleep(0)
            await holder.rollback()

    asyncio.run(asyncio.wait_for(use(), 30))


def test_a_commit_that_waited_in_vain_is_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    holder = store.db.begin()
    holder.get_for_update(b"key")
    late = store.start(store.core.put(b"key", b"x"))
    store.advance(LOCK_WAIT_SECONDS_MAX + 2)
    with pytest.raises(postroom.TransactionConflict):
        late.result()
    conflict, slow = caplog.messages
    assert conflict.startswith("conflict at b'key': commit at b'key'")
    lock = re.search(r": ([0-9.-]+) s for the lock of b'key'", slow)
    assert lock is not None
    assert float(lock[1]) >= LOCK_WAIT_SECONDS_MAX
    assert slow.endswith("it failed: TransactionConflict")


def test_a_store_that_was_not_asked_takes_no_times() -> None:
    store = Store()
    holder = store.db.begin()
    holder.get_for_update(b"key")
    store.start(store.core.put(b"key", b"x"))
    assert store.node.slow_log.timed == {}
    holder.rollback()
    store.db.close()


def test_all_ranges_share_a_log() -> None:
    with postroom.open(":memory:", slow=0.5) as db:
        db.split(b"m")
        for key in (b"a", b"z"):
            db.put(key, b"value")
        with db.begin() as tx:
            tx.put(b"a", b"1")
            tx.put(b"z", b"2")
        assert db.get(b"z") == b"2"


@pytest.mark.parametrize("slow", [-1, float("nan")])
def test_an_impossible_number_of_seconds_is_refused(slow: float) -> None:
    with pytest.raises(ValueError, match="slow"):
        postroom.open(":memory:", slow=slow)


def test_a_number_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="slow"):
        postroom.open(":memory:", slow="0.5")  # type: ignore[arg-type]
