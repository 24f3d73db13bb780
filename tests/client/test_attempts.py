"""Attempts at a message, in every store: also one of a client that vanished."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom import limits
from postroom.messaging import attempts, outbox, undelivered
from postroom.messaging.attempts import AttemptNotes
from postroom.messaging.requests import (
    NoteAttempts,
)
from postroom.ranges.replica import Replica
from tests.client.postponed import KEY, postpone, reap, send
from tests.client.stores import Store
from tests.sim import waiting_rules


@pytest.mark.parametrize("end", ["postponed", "buried", "lost"])
def test_many_are_tried_in_vain_over_several_turns(
    store: Store, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """No turn stores more than its share."""
    count, share, db = 3000, 200, store.db
    send(db, *[b"%d" % number for number in range(count)])
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", share)
    monkeypatch.setattr(attempts, "_NOTED_TOGETHER", 100)
    done, most = [0], 0
    prepare, encode = store.node.prepare, attempts._encode

    def encoded(stored: Any) -> bytes:
        done[0] += 1
        return encode(stored)

    def looked() -> object:
        nonlocal most
        done[0] = 0
        staged = prepare()
        most = max(most, done[0])
        return staged

    for module in (attempts, outbox, undelivered):
        monkeypatch.setattr(module, "_encode", encoded)
    monkeypatch.setattr(store.node, "prepare", looked)
    tx = db.begin(timeout=5)
    found = tx.reap_queue(KEY, count)
    if end == "lost":
        store.advance(10)
        assert [number for _, number, _ in reap(db, max_results=count)] == [1] * count
    else:
        (tx.postpone if end == "postponed" else tx.bury)(found)
        tx.commit()
    counters = store.counters()
    assert count in {counters.pending, counters.dead, counters.delivered}
    assert 0 < most <= share


def test_a_transaction_that_does_not_commit_is_no_attempt(store: Store) -> None:
    db = store.db
    send(db, b"m")
    tries = []

    def digest(tx: postroom.Transaction) -> None:
        tries.append(tx.get(b"k"))
        tx.reap_queue(KEY, max_attempts=1)
        if len(tries) < 4:
            with db.begin() as other:
                other.put(b"k", b"%d" % len(tries))
            tx.put(b"x", b"")
            tx.commit()
        raise ValueError("the application's own")

    with pytest.raises(ValueError, match="own"):
        db.run(digest)
    assert len(tries) == 4
    assert reap(db) == [(b"m", 0, "")]


def test_a_transaction_whose_time_passes_is_an_attempt(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    db = store.db
    send(db, b"m", b"n")
    for number in range(3):
        tx = db.begin(timeout=5)
        assert tx.reap_queue(KEY, 1, max_attempts=3)[0].attempts == number
        store.advance(6)
    assert reap(db, max_attempts=3) == [(b"n", 0, "")]
    (letter,) = db.dead_letters()
    assert (letter.message, letter.attempts) == (b"m", 3)
    assert "time" in letter.reason
    (line,) = [each for each in caplog.messages if "is dead" in each]
    assert "is dead after 3 attempts: the time" in line
    assert line.endswith(f"to revive it: postroom dead-letters --replay {letter.id[16:]}")


def test_an_attempt_that_is_lost_is_counted_once_and_costs_little(store: Store) -> None:
    db = store.db
    send(db, b"m", b"n")
    tx = db.begin(timeout=5)
    tx.reap_queue(KEY)
    writes = store.engine.writes
    store.advance(6)
    assert store.engine.writes - writes <= 2  # a lease, as the range was at rest, and the attempt
    assert [(value, number) for value, number, _ in reap(db)] == [(b"m", 1), (b"n", 1)]
    with pytest.raises(postroom.TransactionExpired):
        tx.commit()
    assert [number for _, number, _ in reap(db)] == [1, 1]


def test_a_client_that_vanishes_during_its_commit_has_tried_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = store.db
    send(db, b"m")
    tx = db.begin()
    tx.postpone(tx.reap_queue(KEY, max_attempts=2), 0, "not now")
    start = Replica.start

    def gone_meanwhile(replica: Replica, proposal: Any) -> None:
        start(replica, proposal)
        replica.release_client(tx.id[:8])

    with monkeypatch.context() as patched:
        patched.setattr(Replica, "start", gone_meanwhile)
        tx.commit()
    store.advance(5)
    assert reap(db, max_attempts=2) == [(b"m", 1, "not now")]
    assert store.node.root.replica.sizes()["holders"] == 0


def test_a_message_that_was_tried_comes_alone(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2", b"3")
    postpone(db, 2, 0, "no")
    assert len(reap(db)) == 3
    assert len(reap(db, max_attempts=5)) == 1
    with db.begin() as tx:
        assert [each.value for each in tx.reap_queue(KEY, max_attempts=5)] == [b"1"]
        assert tx.reap_queue(KEY, max_attempts=5).more
    send(db, b"4")
    assert [value for value, *_ in reap(db, max_attempts=5)] == [b"3", b"4"]


KILLER = """
    import os, sys
    import postroom
    with postroom.open(sys.argv[1]) as db:
        with db.begin() as tx:
            found = tx.reap_queue(b"inbox", 10, max_attempts=2)
            if any(message.value == b"poison" for message in found):
                os._exit(9)
        print(" ".join(message.value.decode() for message in found))
"""


def test_a_message_that_kills_its_process_is_buried(tmp_path: Path) -> None:
    """The claims of an embedded store end with its process: the attempt is known all the same."""
    path, program = str(tmp_path / "store"), textwrap.dedent(KILLER)
    with postroom.open(path) as db:
        send(db, b"before", b"poison", b"behind")
    told = []
    for _ in range(10):
        command = [sys.executable, "-c", program, path]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode in {0, 9}, ended.stderr
        told.append(ended.stdout.strip() if ended.returncode == 0 else "killed")
        if "behind" in told[-1]:
            break
    assert 1 <= told.count("killed") <= 4
    with postroom.open(path) as db:
        (letter,) = db.dead_letters()
        assert (letter.message, letter.attempts) == (b"poison", 2)
        assert letter.reason == "the process that had it has ended"


def test_an_attempt_that_nobody_waited_for_was_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was to be written down, and whoever asked for the message is gone before that is done."""
    store = Store(rests_alone=True)
    send(store.db, b"m")
    store.restart(after_seconds=1)
    write = AttemptNotes._send

    async def write_slowly(notes: Any, send: Any, note: NoteAttempts) -> Any:
        await store.node.tasks.sleep(1)
        return await write(notes, send, note)

    monkeypatch.setattr(AttemptNotes, "_send", write_slowly)
    tx = store.core.begin()
    reaping = store.start(tx.reap_queue(KEY, max_attempts=1))
    assert not reaping.done
    store.driver.cancel(reaping)
    store.driver.run(tx.rollback())
    store.advance(5)
    store.restart(after_seconds=1)
    reaping = store.start(store.core.begin().reap_queue(KEY, max_attempts=1))
    store.advance(5)
    assert [message.attempts for message in reaping.result()] == [0]


def test_an_attempt_of_another_life_that_was_rolled_back_does_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with postroom.open(path) as db:
        send(db, b"m")
    for _ in range(3):
        with postroom.open(path) as db:
            assert reap(db, max_attempts=2) == [(b"m", 0, "")]
            db.put(b"k", b"v")  # after what the rollback has left to be written
            assert reap(db, max_attempts=2) == [(b"m", 0, "")]
            db.put(b"k", b"v")


def test_a_waiting_reaper_gets_the_rest_once_an_attempt_is_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stood in line until that was written."""
    store = Store(rests_alone=True)
    with store.db.begin() as tx:
        for value in (b"1", b"2"):
            tx.enqueue_message(KEY, value, deliver_at=5.0)
    store.restart()

    async def take() -> list[bytes]:
        held = store.core.begin()  # and stays open
        return [each.value for each in await held.reap_queue(KEY, 1, wait=60, max_attempts=3)]

    takers = [store.start(take()) for _ in range(2)]
    write, held_back = AttemptNotes._write, []
    with monkeypatch.context() as patched:
        patched.setattr(AttemptNotes, "_write", lambda *given: held_back.append(given))
        store.advance(6.0)
        waiting_rules.check_lines(store.node)
    assert len(held_back) == 2, "the second one has been given the second message"
    for given in held_back:
        write(*given)
    store.advance(1.0)
    assert [each.result() for each in takers] == [[b"1"], [b"2"]]
    store.db.close()
