"""Failures are told: to the log, and to hooks."""

from __future__ import annotations

import asyncio
import logging
import shlex
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from postroom.client.worker import failures
from postroom.client.worker.failures import Failure, FailureLog
from tests.cli.commands import invoke

LOG = "postroom.worker"


class Lines(Sequence[logging.LogRecord]):
    """The lines of the log."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __len__(self) -> int:
        return len(self._caplog.records)

    def __getitem__(self, index: Any) -> Any:
        return self._caplog.records[index]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    with caplog.at_level(logging.WARNING, LOG):
        yield Lines(caplog)


def texts(lines: Lines, part: str) -> list[str]:
    return [line.getMessage() for line in lines if part in line.getMessage()]


def failing(worker: Any, **options: Any) -> None:
    @worker.task("q", **options)
    def fails(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        if message.payload.startswith(b"key"):
            raise KeyError(message.payload)
        raise ValueError(message.payload)


def test_the_first_failure_of_a_type_is_logged_with_its_traceback(
    store: postroom.testing.Store, lines: Lines
) -> None:
    store.db.create_queue("q")
    worker = postroom.Worker(store.db)
    failing(worker)
    with store.db.begin() as tx:
        for number in range(10):
            tx.enqueue("q", b"value %d" % number)
            tx.enqueue("q", b"key %d" % number)
    assert worker.run_until_idle() == 20
    first = [line for line in lines if line.exc_info]
    kinds = [line.exc_info[0] for line in first if line.exc_info]
    assert sorted(str(kind) for kind in kinds) == sorted(map(str, (ValueError, KeyError)))
    assert all("attempt 1" in line.getMessage() for line in first)
    counted = texts(lines, "more attempts have failed")
    assert len(counted) == 2
    assert all(": 9 more attempts have failed with" in line for line in counted)


async def waits_and_fails(message: Any, tx: Any) -> None:
    await asyncio.sleep(0)
    await tx.commit()


def fails_at_once(message: Any, tx: Any) -> None:
    tx.commit()


@pytest.mark.parametrize("function", [waits_and_fails, fails_at_once])
def test_a_traceback_begins_with_the_function_of_the_user(
    store: postroom.testing.Store, lines: Lines, function: Any
) -> None:
    store.db.create_queue("q")
    worker = postroom.Worker(store.db)
    worker.task("q")(function)
    with store.db.begin() as tx:
        tx.enqueue("q", b"")
    worker.run_until_idle()
    (shown,) = [line.exc_info[2] for line in lines if line.exc_info]
    names = [each.name for each in traceback.extract_tb(shown)]
    assert names[0] == function.__name__
    assert len(names) > 1, "what the function has called is shown, too"


def test_each_dead_letter_is_a_line_that_names_the_command_which_revives_it(
    store: postroom.testing.Store, lines: Lines
) -> None:
    q = store.db.create_queue("q", max_attempts=2, min_backoff=60)
    worker = postroom.Worker(store.db)
    failing(worker)
    with store.db.begin() as tx:
        for number in range(100):
            tx.enqueue("q", b"%d" % number, id=f"m{number}")
    worker.run_until_idle()
    assert texts(lines, "dead") == []
    store.advance(1000)
    worker.run_until_idle()
    dead = texts(lines, "is dead after 2 attempts")
    assert len(dead) == q.stats().dead == 100
    assert any("postroom queue replay q m7" in line for line in dead)


def test_a_message_that_is_discarded_is_dead_without_a_traceback(
    store: postroom.testing.Store, lines: Lines
) -> None:
    store.db.create_queue("q")
    worker = postroom.Worker(store.db)

    @worker.task("q")
    async def discards(message: Any, tx: Any) -> None:
        raise postroom.Discard("of no use")

    with store.db.begin() as tx:
        tx.enqueue("q", b"")
    worker.run_until_idle()
    assert len(texts(lines, "is dead after 1 attempt: Discard: of no use")) == 1
    assert not any(line.exc_info for line in lines)


def test_a_message_of_an_inbox_that_dies_is_a_line_with_its_command(
    store: postroom.testing.Store, lines: Lines
) -> None:
    worker = postroom.Worker(store.db)

    @worker.inbox(b"k", max_attempts=2)
    def fails(message: postroom.Message, tx: postroom.Transaction) -> None:
        raise ValueError("no")

    with store.db.begin() as tx:
        tx.enqueue_message(b"k", b"")
    worker.run_until_idle()
    store.advance(100)
    worker.run_until_idle()
    (line,) = texts(lines, "is dead after 2 attempts")
    (letter,) = store.db.dead_letters()
    assert line.endswith(f"to revive it: postroom dead-letters --replay {letter.id[16:]}")


IDS: list[str | bytes] = ["i", "order 17", "--all", "it's; $HOME", b"\xff", "a\n\x1b[2J"]


@pytest.mark.parametrize("id_", IDS)
def test_the_line_of_a_dead_letter_has_a_command_that_can_be_copied(
    tmp_path: Path, lines: Lines, id_: str | bytes
) -> None:
    path = str(tmp_path / "store")
    with postroom.open(path) as db:
        q = db.create_queue("a queue", max_attempts=1)
        worker = postroom.Worker(db)

        @worker.task("a queue")
        def fails(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
            raise ValueError

        with db.begin() as tx:
            tx.enqueue("a queue", b"", id=id_)
        worker.run_until_idle()
        (line,) = texts(lines, "is dead after")
        assert line.isprintable()
        command = line.partition("to revive it: ")[2]
        if not command.startswith("postroom"):
            eval(command)
            assert q.stats().ready == 1
            return
    words = shlex.split(command)
    assert invoke(*words[1:3], "--path", path, *words[3:]).exit_code == 0
    with postroom.open(path) as db:
        assert db.queue("a queue").stats().ready == 1


def test_the_line_of_a_message_that_moves_names_its_queue_of_dead_letters(
    store: postroom.testing.Store, lines: Lines
) -> None:
    store.db.create_queue("grave")
    store.db.create_queue("q", max_attempts=1, dead_letter_queue="grave")
    worker = postroom.Worker(store.db)
    failing(worker)
    with store.db.begin() as tx:
        tx.enqueue("q", b"")
    worker.run_until_idle()
    (line,) = texts(lines, "is dead after 1 attempt")
    assert line.endswith("it is in queue 'grave' now, which works on it")
    assert store.db.queue("grave").stats().ready == 1


def test_failures_are_summed_up_each_minute_and_forgotten_after_an_hour(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(failures, "DEAD_LINES", 2)
    monkeypatch.setattr(failures, "KINDS_REMEMBERED", 3)

    async def main() -> None:
        nonlocal now
        log = FailureLog(lambda: now)

        def fail(error: Exception, revive: str = "") -> None:
            log.failed("the task", Failure(None, "message 1", 1, error, revive))

        for _ in range(5):
            fail(ValueError("no"), "to revive it: do so")
        log._minute()
        assert texts(lines, "4 more attempts have failed with ValueError; the last: message 1")
        assert texts(lines, "3 more messages are dead")
        before = len(lines)
        log._minute()
        assert len(lines) == before
        now += failures.AGAIN_SECONDS + 1
        fail(ValueError("no"))
        assert lines[-1].exc_info
        for number in range(10):
            fail(type(f"Error{number}", (Exception,), {})())
        assert len(log._kinds) == 3
        log.close()

    asyncio.run(main())


def test_an_error_with_control_characters_is_escaped_in_the_log(
    store: postroom.testing.Store, lines: Lines
) -> None:
    store.db.create_queue("q")
    worker = postroom.Worker(store.db)

    @worker.task("q")
    def fails(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        raise ValueError("\x1b[2J\ud800")

    with store.db.begin() as tx:
        tx.enqueue("q", b"")
    worker.run_until_idle()
    (line,) = lines
    line.getMessage().encode()
    assert "\x1b" not in line.getMessage()
    assert "Traceback" in line.getMessage()


# --- hooks


class Told:
    """Hooks that remember what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, str, int]] = []

    def hook(self, name: str) -> Any:
        def told(message: Any, exception: Exception, attempt: int) -> None:
            self.told.append((name, message, type(exception).__name__, attempt))

        return told

    def coroutine(self, name: str) -> Any:
        async def told(message: Any, exception: Exception, attempt: int) -> None:
            await asyncio.sleep(0)
            self.told.append((name, message, type(exception).__name__, attempt))

        return told

    @property
    def names(self) -> list[tuple[str, int]]:
        return [(name, attempt) for name, _, _, attempt in self.told]


@pytest.mark.parametrize("form", ["hook", "coroutine"])
def test_hooks_of_a_task_and_of_its_worker_are_told_of_failures_and_deaths(
    store: postroom.testing.Store, form: str
) -> None:
    told = Told()
    make = getattr(told, form)
    store.db.create_queue("q", max_attempts=2)
    worker = postroom.Worker(
        store.db, on_failure=make("worker failure"), on_dead=make("worker dead")
    )
    failing(worker, on_failure=make("task failure"), on_dead=make("task dead"))
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="i")
    worker.run_until_idle()
    assert told.names == [("task failure", 1), ("worker failure", 1)]
    store.advance(100)
    worker.run_until_idle()
    assert told.names[2:] == [
        ("task failure", 2), ("worker failure", 2), ("task dead", 2), ("worker dead", 2),
    ]  # fmt: skip
    assert {(message.id, error) for _, message, error, _ in told.told} == {("i", "ValueError")}


def test_hooks_of_an_inbox_are_told_of_each_message_of_a_batch(
    store: postroom.testing.Store,
) -> None:
    told = Told()
    worker = postroom.Worker(store.db)

    @worker.inbox(
        b"k", batch=10, max_attempts=1, on_failure=told.hook("failure"), on_dead=told.hook("dead")
    )
    def fails(messages: list[postroom.Message], tx: postroom.Transaction) -> None:
        raise ValueError("no")

    with store.db.begin() as tx:
        tx.enqueue_message(b"k", b"1")
        tx.enqueue_message(b"k", b"2")
    worker.run_until_idle()
    told_of = [(name, message.value) for name, message, _, _ in told.told]
    assert sorted(told_of) == [
        ("dead", b"1"), ("dead", b"2"), ("failure", b"1"), ("failure", b"2"),
    ]  # fmt: skip


def test_hooks_in_asyncio() -> None:
    async def main() -> list[tuple[str, int]]:
        told = Told()
        async with await postroom.testing.open_async() as db:
            await db.create_queue("q", max_attempts=1)
            worker = postroom.aio.Worker(
                db, on_failure=told.coroutine("failure"), on_dead=told.hook("dead")
            )
            failing(worker)
            async with db.begin() as tx:
                tx.enqueue("q", b"")
            await worker.run_until_idle()
        return told.names

    assert asyncio.run(main()) == [("failure", 1), ("dead", 1)]


def raises(message: Any, exception: Exception, attempt: int) -> None:
    raise SystemExit("odd")


async def raises_too(message: Any, exception: Exception, attempt: int) -> None:
    raise asyncio.CancelledError


def settles(message: Any, exception: Exception, attempt: int) -> None:
    message.acknowledge()


@pytest.mark.parametrize("hook", [raises, raises_too, settles])
def test_a_hook_changes_no_outcome_and_is_logged_when_it_raises(
    store: postroom.testing.Store, lines: Lines, hook: Any
) -> None:
    q = store.db.create_queue("q", max_attempts=1)
    worker = postroom.Worker(store.db, on_dead=hook)
    failing(worker, on_failure=hook)
    with store.db.begin() as tx:
        tx.enqueue("q", b"")
    assert worker.run_until_idle() == 1
    (dead,) = q.dead_letters()
    assert dead.last_error.startswith("ValueError")
    assert len(texts(lines, "its hook on_failure has failed")) == 1
    assert len(texts(lines, "its hook on_dead has failed")) == 1


def test_a_hook_that_hangs_is_given_up(
    store: postroom.testing.Store,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "HOOK_SECONDS", 0.1)
    over = threading.Event()
    q = store.db.create_queue("q", max_attempts=1)

    def hangs(message: Any, exception: Exception, attempt: int) -> None:
        over.wait(60)

    worker = postroom.Worker(store.db, on_failure=hangs)
    failing(worker)
    with store.db.begin() as tx:
        tx.enqueue("q", b"")
    try:
        assert worker.run_until_idle() == 1
    finally:
        over.set()
    assert q.stats().dead == 1
    assert len(texts(lines, "it ran for more than 0.1 s")) == 1


@pytest.mark.parametrize("name", ["on_failure", "on_dead"])
def test_hooks_are_checked(name: str) -> None:
    worker = postroom.Worker()
    for wrong in (lambda message: None, "no function", Told):
        hooks: Any = {name: wrong}
        with pytest.raises(TypeError, match=name):
            postroom.Worker(**hooks)
        with pytest.raises(TypeError, match=name):
            worker.task("q", **hooks)
        with pytest.raises(TypeError, match=name):
            worker.inbox(b"k", **hooks)
