"""A turn that raises what must not happen: nobody waits for ever for its end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.errors import CommitUnknown, Unavailable
from postroom.kv.engine_folder import OpenFolder
from postroom.kv.storage import Storage
from postroom.ranges.proposer import Proposer
from postroom.server import asyncio_driver, disk_guard
from postroom.server.node import Node

PATIENCE_SECONDS = 60
DELIVERED_SECONDS = 0.02


def fail_once(monkeypatch: pytest.MonkeyPatch, thread_name: str) -> threading.Event:
    """Let the next write of a turn in a thread of that name find no memory."""
    real, failed = Storage.write_turn, threading.Event()

    def write_turn(storage: Storage, writes: Any, *, sync: bool) -> None:
        if not failed.is_set() and writes and threading.current_thread().name == thread_name:
            failed.set()
            raise MemoryError
        real(storage, writes, sync=sync)

    monkeypatch.setattr(Storage, "write_turn", write_turn)
    return failed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_in_the_thread_of_upkeep_leaves_no_caller_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as driving the store for ever."""
    db = postroom.open(tmp_path / "store")
    db.put(b"before", b"1")
    failed = fail_once(monkeypatch, "postroom")
    with db.begin() as tx:
        tx.enqueue_message(b"inbox", b"message", deliver_at=DELIVERED_SECONDS)
    assert failed.wait(PATIENCE_SECONDS)
    told = list[BaseException]()

    def put() -> None:
        try:
            db.put(b"after", b"2")
        except Unavailable as error:
            told.append(error)

    putting = threading.Thread(target=put, daemon=True)
    putting.start()
    putting.join(PATIENCE_SECONDS)
    assert "open it again" in str(*told)
    db.close()
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"before") == b"1"


@pytest.mark.parametrize("keys", [1, asyncio_driver.WRITTEN_AT_ONCE_KEYS + 1])
def test_an_error_in_a_turn_on_a_loop_leaves_no_caller_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    """It was never finished, and no other one could be begun."""
    raised = list[Any]()

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: raised.append(told))
        db = await postroom.aio.open(tmp_path / "store")
        await db.put(b"before", b"1")
        thread_name = "postroom turn" if keys > 1 else threading.current_thread().name
        fail_once(monkeypatch, thread_name)
        tx = db.begin()
        for number in range(keys):
            tx.put(b"%d" % number, b"1")
        with pytest.raises(CommitUnknown):
            await tx.commit()
        with pytest.raises(Unavailable, match="open it again"):
            await db.put(b"after", b"2")
        await db.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
    assert [type(each["exception"]) for each in raised] == [MemoryError]
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"before") == b"1"


def test_after_a_turn_on_a_loop_that_raises_before_anything_is_staged_there_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was none before somebody else asked for something; a leader fell silent."""
    raised, real, fails = list[Any](), Proposer.propose, list[bool]()

    def propose(proposer: Proposer, *rest: Any) -> Any:
        if fails:
            fails.clear()
            raise MemoryError
        return real(proposer, *rest)

    monkeypatch.setattr(Proposer, "propose", propose)
    monkeypatch.setenv("POSTROOM_GENERAL_ONLY", "1")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: raised.append(told))
        async with await postroom.aio.open(tmp_path / "store") as db:
            await db.put(b"before", b"1")
            fails.append(True)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await db.put(b"after", b"2")
            assert await db.get(b"after") == b"2"

    asyncio.run(scenario())
    assert [type(told["exception"]) for told in raised] == [MemoryError]


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_store_is_let_go_of_though_its_last_turn_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_loop: bool
) -> None:
    """The folder stayed locked."""

    def turn(_: Node) -> None:
        raise MemoryError

    def fail_at_the_end() -> None:
        monkeypatch.setattr(Node, "wants_turn", lambda _: True)
        monkeypatch.setattr(Node, "turn", turn)

    async def scenario() -> None:
        db = await postroom.aio.open(tmp_path / "store")
        await db.put(b"before", b"1")
        fail_at_the_end()
        await db.close()

    def in_threads() -> None:
        db = postroom.open(tmp_path / "store")
        db.put(b"before", b"1")
        fail_at_the_end()
        db.close()

    with pytest.raises(MemoryError):
        asyncio.run(scenario()) if on_a_loop else in_threads()
    monkeypatch.undo()
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"before") == b"1"


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_store_that_cannot_measure_its_free_room_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_loop: bool
) -> None:
    """A folder that was moved, say. Each turn raised; on a loop nobody was told."""
    monkeypatch.setattr(disk_guard, "ROOM_CHECK_SECONDS", 0.0)

    def refuse(_: OpenFolder) -> int:
        raise FileNotFoundError

    async def scenario() -> None:
        async with await postroom.aio.open(tmp_path / "store") as db:
            monkeypatch.setattr(OpenFolder, "free_bytes", refuse)
            await db.put(b"key", b"1")

    if on_a_loop:
        asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
    else:
        with postroom.open(tmp_path / "store") as db:
            monkeypatch.setattr(OpenFolder, "free_bytes", refuse)
            db.put(b"key", b"1")
    monkeypatch.undo()
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"key") == b"1"


def test_a_large_turn_is_written_where_no_thread_is_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("postroom"):
            raise RuntimeError("can't start new thread")
        real(thread)

    async def scenario() -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        async with await postroom.aio.open(tmp_path / "store") as db:
            async with db.begin() as tx:
                for number in range(asyncio_driver.WRITTEN_AT_ONCE_KEYS + 1):
                    tx.put(b"%d" % number, b"1")
            await db.put(b"after", b"2")
            assert await db.get(b"after") == b"2"

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
    monkeypatch.undo()
    with postroom.open(tmp_path / "store") as again:
        assert len(list(again.scan())) == asyncio_driver.WRITTEN_AT_ONCE_KEYS + 2
