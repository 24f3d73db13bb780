"""Messages that cannot be digested: postponed, buried, counted, in every store."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroom
import postroom.aio
from postroom import limits
from postroom.client.commits import commit_one
from postroom.kv import keys
from postroom.messaging import attempt_notes, attempts, dead_letters, outbox
from postroom.messaging.attempt_notes import AttemptNotes
from postroom.messaging.requests import (
    BuryMessages,
    NoteAttempts,
    PostponeMessages,
    ReapMessages,
)
from postroom.protocol.requests import WriteRequest
from postroom.ranges.requests import CommitTransaction
from tests.client.stores import Store

KEY = b"inbox"


def send(db: postroom.Database, *values: Any, **options: Any) -> None:
    with db.begin() as tx:
        for value in values:
            tx.enqueue_message(KEY, value, **options)


def reap(db: postroom.Database, **options: Any) -> list[tuple[Any, int, str]]:
    """What is there, and is left there."""
    tx = db.begin()
    found = [(each.value, each.attempts, each.last_error) for each in tx.reap_queue(KEY, **options)]
    tx.rollback()
    return found


def postpone(db: postroom.Database, most: int = 1, *given: Any, **options: Any) -> None:
    with db.begin() as tx:
        tx.postpone(
            tx.reap_queue(KEY, most, max_attempts=options.pop("of", None)), *given, **options
        )


def test_a_message_comes_back_to_its_place(db: postroom.Database) -> None:
    send(db, b"first", headers={"n": 1})
    send(db, b"second")
    assert [message.attempts for message in db.peek(KEY)] == [0, 0]
    before = db.peek(KEY)[0]
    postpone(db, 1, 0.05, "not now")
    assert [message.value for message in db.peek(KEY)] == [b"second"]
    with db.begin() as tx:
        assert [each.value for each in tx.reap_queue(KEY, 1, wait=5)] == [b"second"]
    with db.begin() as tx:
        (message,) = tx.reap_queue(KEY, wait=30)
        assert (message.value, message.headers, message.id) == (b"first", {"n": 1}, before.id)
        assert (message.attempts, message.last_error) == (1, "not now")
        assert message.delivered_at >= before.delivered_at
    counters = db.status().counters
    assert (counters.enqueued, counters.delivered, counters.reaped, counters.pending) == (
        2,
        2,
        2,
        0,
    )


def test_the_wait_doubles_up_to_five_minutes(store: Store) -> None:
    send(store.db, b"m")
    waits = []
    for _ in range(11):
        postpone(store.db, 1)
        (waiting,) = store.db.scheduled()
        waits.append((waiting.due.datetime - store.db.now().datetime).total_seconds())
        assert waiting.attempts == len(waits)
        store.advance(400)
    wanted = [min(2**number, 300) for number in range(11)]
    assert all(0.89 * each <= wait <= 1.11 * each for wait, each in zip(waits, wanted, strict=True))
    assert max(waits) <= 300


def test_no_delay_is_at_once(store: Store) -> None:
    send(store.db, b"m")
    postpone(store.db, 1, 0, "again")
    assert reap(store.db) == [(b"m", 1, "again")]
    assert store.counters().delivered == 1


def test_who_waits_is_woken_when_it_is_due(store: Store) -> None:
    send(store.db, b"m")
    postpone(store.db, 1, 7)
    began = store.clock.seconds
    assert reap(store.db, wait=100) == [(b"m", 1, "")]
    assert 7 <= store.clock.seconds - began < 7.1


def test_what_is_behind_waits_if_its_consumer_says_so(store: Store) -> None:
    db = store.db
    send(db, b"1")
    send(db, b"2", b"3")
    postpone(db, 1, 10, hold=True)
    assert reap(db) == []
    send(db, b"4")
    assert reap(db) == []
    (info,) = db.inboxes()
    assert (info.messages, info.held_up) == (3, True)
    assert db.inboxes(ready=True) == []
    assert [message.value for message in db.peek(KEY)] == [b"2", b"3", b"4"]
    store.advance(11)
    assert [value for value, *_ in reap(db)] == [b"1", b"2", b"3", b"4"]
    assert not db.inboxes(ready=True)[0].held_up


def test_what_was_sent_before_is_not_held_up(store: Store) -> None:
    db = store.db
    send(db, b"older", deliver_at=5)
    send(db, b"held")
    postpone(db, 1, 1000, hold=True)
    send(db, b"newer")
    assert reap(db) == []
    store.advance(6)
    assert [value for value, *_ in reap(db)] == [b"older"]


def test_several_hold_up_an_inbox_until_the_last_is_back(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2", b"3")
    postpone(db, 1, 10, hold=True)
    store.advance(11)
    with db.begin() as tx:
        one, two = tx.reap_queue(KEY, 2)
        tx.postpone(two, 100, hold=True)
        tx.postpone(one, 10, hold=True)
    assert reap(db) == []
    store.advance(11)
    assert [value for value, *_ in reap(db)] == [b"1"]
    store.advance(100)
    assert [value for value, *_ in reap(db)] == [b"1", b"2", b"3"]


def test_an_inbox_is_free_when_what_held_it_up_is_cancelled(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2")
    postpone(db, 1, 1000, "bad", hold=True)
    (waiting,) = db.scheduled()
    assert (waiting.message, waiting.key) == (b"1", KEY)
    assert (waiting.attempts, waiting.last_error) == (1, "bad")
    assert db.cancel([waiting.id]) == 1
    assert [value for value, *_ in reap(db)] == [b"2"]
    counters = store.counters()
    assert (counters.delivered, counters.dead, counters.cancelled) == (1, 1, 1)


def test_an_empty_inbox_that_is_held_up_is_not_listed(store: Store) -> None:
    send(store.db, b"1")
    postpone(store.db, 1, 1000, hold=True)
    assert store.db.inboxes() == []
    store.db.cancel([each.id for each in store.db.scheduled()])
    send(store.db, b"2")
    assert [value for value, *_ in reap(store.db)] == [b"2"]


def test_the_last_attempt_makes_a_dead_letter(db: postroom.Database) -> None:
    send(db, b"m", headers={"h": 1})
    for number in range(3):
        assert reap(db, max_attempts=3)[0][1] == number
        postpone(db, 1, 0, f"no {number}", of=3)
    assert reap(db) == []
    (letter,) = db.dead_letters()
    assert (letter.key, letter.message, letter.headers) == (KEY, b"m", {"h": 1})
    assert (letter.attempts, letter.reason, letter.request) == (3, "no 2", None)
    counters = db.status().counters
    assert (counters.delivered, counters.dead, counters.pending) == (0, 1, 0)
    assert db.replay([letter.id]) == 1
    db.drain()
    assert reap(db) == [(b"m", 0, "")]


def test_a_message_that_was_seen_can_be_buried(db: postroom.Database) -> None:
    send(db, b"1", b"2")
    with db.begin() as tx:
        tx.bury(db.peek(KEY)[1], "nobody wants it")
    assert [message.value for message in db.peek(KEY)] == [b"1"]
    (letter,) = db.dead_letters()
    assert (letter.message, letter.reason, letter.attempts) == (b"2", "nobody wants it", 1)
    assert db.discard([letter.id]) == 1


def test_one_transaction_consumes_postpones_and_buries(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2", b"3", b"4")
    before = db.now()
    with db.begin() as tx:
        one, two, three, _ = tx.reap_queue(KEY)
        tx.bury(one)
        tx.postpone([one, two], 10)
        tx.bury(three, "no")
    assert [letter.message for letter in db.dead_letters()] == [b"3"]
    assert [each.message for each in db.scheduled()] == [b"1", b"2"]
    assert [message.value for message in db.peek(KEY, at=before)] == [b"1", b"2", b"3", b"4"]
    assert db.peek(KEY) == []
    between = db.now()
    store.advance(11)
    assert [message.value for message in db.peek(KEY)] == [b"1", b"2"]
    assert db.peek(KEY, at=between) == []
    then = [(message.value, message.attempts) for message in db.peek(KEY, at=before)]
    assert then == [(b"1", 0), (b"2", 0), (b"3", 0), (b"4", 0)]


def test_each_with_a_reason_of_its_own(store: Store) -> None:
    """Each is a request of its own. What they leave for those who look back is not written anew
    with each of them."""
    db = store.db
    send(db, *[b"%d" % number for number in range(300)])
    before = db.now()
    with db.begin() as tx:
        for number, message in enumerate(tx.reap_queue(KEY, 300)):
            tx.postpone(message, 10, str(number))
    assert db.peek(KEY) == []
    assert len(db.peek(KEY, 300, at=before)) == 300
    records = [key for key in store.dump() if key.startswith(keys.suffix_span(KEY, keys.REAPED)[0])]
    assert len(records) == 300


def test_one_that_is_taken_out_twice_by_a_commit(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2")
    before = db.now()
    one, two = (bytes.fromhex(message.id) for message in db.peek(KEY))
    writes = [
        PostponeMessages(KEY, [(two, 0)], 0.0),
        PostponeMessages(KEY, [(one, 0)], 0.0),
        ReapMessages(KEY, [one]),
        ReapMessages(KEY, []),
    ]
    request = CommitTransaction(
        store.driver.next_id(), store.driver.reading(), 10.0, 0, KEY, [], [], writes
    )

    async def send_it() -> None:
        await store.driver.send(request)

    store.driver.run(send_it())
    assert reap(db) == [(b"2", 1, "")]
    assert [message.value for message in db.peek(KEY, at=before)] == [b"1", b"2"]


@pytest.mark.parametrize("end", ["postponed", "buried", "lost"])
def test_many_are_tried_in_vain_over_several_turns(
    store: Store, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """No turn stores more than its share."""
    count, share, db = 3000, 200, store.db
    send(db, *[b"%d" % number for number in range(count)])
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", share)
    monkeypatch.setattr(attempt_notes, "_NOTED_TOGETHER", 100)
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

    for module in (attempts, outbox, dead_letters):
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


def test_a_transaction_whose_time_passes_is_an_attempt(store: Store) -> None:
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


def test_who_vanishes_while_its_commit_is_under_way_has_tried_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, replica = store.db, store.node.replica
    send(db, b"m")
    tx = db.begin()
    tx.postpone(tx.reap_queue(KEY, max_attempts=2), 0, "not now")
    start = replica._start

    def gone_meanwhile(proposal: Any) -> None:
        start(proposal)
        replica.release_client(tx.id[:8])

    with monkeypatch.context() as patched:
        patched.setattr(replica, "_start", gone_meanwhile)
        tx.commit()
    store.advance(5)
    assert reap(db, max_attempts=2) == [(b"m", 1, "not now")]
    assert store.node.replica.sizes()["holders"] == 0


def test_what_was_tried_comes_alone(store: Store) -> None:
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


def test_somebody_else_was_faster(store: Store) -> None:
    db = store.db
    send(db, b"1", b"2")
    one, two = db.peek(KEY)
    with db.begin() as tx:
        tx.reap_queue(KEY, 1)
    slow = db.begin()
    slow.put(b"k", b"v")
    slow.postpone(one)
    with pytest.raises(postroom.TransactionConflict, match="reaped"):
        slow.commit()
    postpone(db, 1, 0)
    slow = db.begin()
    slow.bury(two)
    with pytest.raises(postroom.TransactionConflict, match="tried by somebody else"):
        slow.commit()
    assert db.get(b"k") is None
    assert reap(db) == [(b"2", 1, "")]


def test_who_holds_a_message_that_is_buried_cannot_consume_it(store: Store) -> None:
    db = store.db
    send(db, b"1")
    holder = db.begin()
    (message,) = holder.reap_queue(KEY)
    with db.begin() as tx:
        tx.bury(message)
    with pytest.raises(postroom.TransactionConflict):
        holder.commit()
    assert store.counters().reaped == 0


def test_what_is_postponed_is_not_there_and_comes(store: Store) -> None:
    """An inbox that was found empty beside it is empty; the commit notices when it comes."""
    db = store.db
    send(db, b"m")
    postpone(db, 1, 10)
    with db.begin() as tx:
        assert not tx.reap_queue(KEY)
        tx.put(b"empty", b"1")
    tx = db.begin()
    assert not tx.reap_queue(KEY)
    tx.put(b"empty", b"2")
    store.advance(11)
    with pytest.raises(postroom.TransactionConflict):
        tx.commit()


def test_what_is_held_up_is_there(store: Store) -> None:
    """Then nothing was found empty."""
    db = store.db
    send(db, b"1", b"2")
    postpone(db, 1, 1000, hold=True)
    tx = db.begin()
    assert not tx.reap_queue(KEY)
    tx.put(b"k", b"v")
    send(db, b"3")
    tx.commit()


def test_bounds(db: postroom.Database) -> None:
    send(db, b"m")
    with db.begin() as tx:
        (message,) = tx.reap_queue(KEY)
        for wrong in (float("nan"), float("inf"), -1):
            with pytest.raises(ValueError, match="delay"):
                tx.postpone(message, wrong)
        for call in (tx.postpone, tx.bury):
            with pytest.raises(TypeError):
                call(b"m")  # type: ignore[operator]
            with pytest.raises(TypeError):
                call([message, message.id])  # type: ignore[operator]
        with pytest.raises(ValueError, match="max_attempts"):
            tx.postpone(message, max_attempts=0)
        with pytest.raises(ValueError, match="max_attempts"):
            tx.reap_queue(KEY, max_attempts=0)
        tx.postpone(message, datetime.timedelta(days=1), "\ud800" + "x" * 5000)
    (waiting,) = db.scheduled()
    assert len(waiting.last_error) == limits.REASON_CHARACTERS_MAX
    assert waiting.due.datetime - db.now().datetime > datetime.timedelta(hours=23)
    with pytest.raises(postroom.TransactionClosed):
        tx.bury(message)
    with db.begin() as tx:
        tx.postpone([])
        tx.put(b"k", b"v")


def test_the_longest_delay_has_a_timestamp(store: Store) -> None:
    send(store.db, b"m")
    postpone(store.db, 1, 1e300)
    assert len(store.db.scheduled()) == 1


@pytest.mark.parametrize("wrong", [
    PostponeMessages(KEY, [(bytes(20), 0)], 1.0, "x" * 1001),
    PostponeMessages(KEY, [(bytes(20), 0)], -1.0),
    PostponeMessages(KEY, [(bytes(20), 0)], float("nan")),
    PostponeMessages(KEY, [(bytes(20), -2)]),
    PostponeMessages(KEY, [(bytes(19), 0)]),
    PostponeMessages(KEY, [(bytes(20), 0)], attempts_max=-1),
    PostponeMessages(bytes(9000), [(bytes(20), 0)]),
    BuryMessages(KEY, [(bytes(20), 0)], "x" * 1001),
    BuryMessages(KEY, [(bytes(21), 0)]),
    NoteAttempts(KEY, [bytes(20)], "lost", "", 0, b""),
], ids=repr)  # fmt: skip
def test_hostile_requests_are_not_understood(wrong: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=WriteRequest)


def test_hostile_requests_change_nothing(store: Store) -> None:
    """Well-formed, but of messages that are not there, or of none, or of one several times."""
    send(store.db, b"m")
    (message,) = store.db.peek(KEY)
    id_ = bytes.fromhex(message.id)
    for request in (
        PostponeMessages(b"another", [(id_, 0)]),
        BuryMessages(KEY, [(id_, 0), (bytes(20), -1)]),
        BuryMessages(KEY, [(id_, 7)]),
    ):
        with pytest.raises(postroom.TransactionConflict):
            commit(store, request)
    commit(store, PostponeMessages(KEY, []))
    commit(store, BuryMessages(b"nothing there", []))
    assert reap(store.db) == [(b"m", 0, "")]
    commit(store, BuryMessages(KEY, [(id_, 5), (id_, 0)]))
    counters = store.counters()
    assert (counters.delivered, counters.dead) == (0, 1)


def commit(store: Store, write: Any) -> None:
    store.driver.run(commit_one(store.driver, KEY, write))


def test_the_asyncio_form() -> None:
    async def main() -> None:
        async with await postroom.aio.open(":memory:") as db:
            async with db.begin() as tx:
                for value in (b"1", b"2"):
                    tx.enqueue_message(KEY, value)
            async with db.begin() as tx:
                one, two = await tx.reap_queue(KEY, max_attempts=2)
                tx.postpone(one, 0.01, "later")
                tx.bury(two, "never")
            async with db.begin() as tx:
                (message,) = await tx.reap_queue(KEY, wait=30)
                assert (message.value, message.attempts) == (b"1", 1)
            assert [each.reason for each in await db.dead_letters()] == ["never"]
            assert await db.inboxes(ready=True) == []

    asyncio.run(main())


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
