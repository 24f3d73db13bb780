"""The log and the state together: what was written, segments, threads."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random  # noqa: TID251 - made from a seed
from typing import NoReturn

import pytest

from postroom.kv import keys
from postroom.kv.background import StateWriterThread
from postroom.kv.engine import EngineFailed
from postroom.kv.log_device import FolderDevice, WriteFault
from postroom.kv.log_reader import BLOCK_BYTES
from tests.kv.book import SEGMENT_BYTES, STATE, Book, entry, value

# --- written values are there


def test_entries_and_notes_are_there_after_a_crash() -> None:
    book = Book()
    for index in range(1, 200):
        book.add(1, index)
    book.reopen(power=Random(1))
    book.check()
    assert book.note == keys.u64(199)
    assert book.segments > 10, "nobody has let go of anything"


def test_entries_that_were_cut_do_not_come_back() -> None:
    book = Book()
    for index in range(1, 40):
        book.add(1, index)
    for index in range(30, 40):
        del book.groups.entries[1][index]
    book.storage.write_turn({entry(1, index): None for index in range(30, 40)}, sync=True)
    book.add(1, 30, 300)
    book.reopen(power=Random(1))
    book.check()
    assert max(book.found) == entry(1, 30)


@pytest.mark.usefixtures("long_segments")
def test_gathered_writes_are_in_the_log_and_at_closing_in_the_state() -> None:
    book = Book(gathered=50)
    for index in range(1, 10):
        book.add(1, index)
    assert book.disk.content.get(STATE) is None
    assert book.storage.get(STATE) == keys.u64(9)
    book.reopen()
    book.check()
    assert book.storage.get(STATE) is None, "consensus applies it again"
    book.add(1, 10)
    book.storage.close()
    assert book.disk.content.get(STATE) == keys.u64(10)


def test_a_sync_includes_gathered_writes() -> None:
    book = Book(gathered=50)
    book.add(1, 1)
    book.storage.sync()
    book.disk.crash(Random(1))
    assert book.disk.content.get(STATE) == keys.u64(1)


def test_a_state_that_refuses_what_has_waited_ends_all_writing() -> None:
    book = Book(gathered=3)
    for index in range(1, 3):
        book.storage.write_turn({entry(1, index): value(index), b"\x06%d" % index: b"1"}, sync=True)
    book.disk.write_faults = {book.disk.writes + number: WriteFault.NOT_AT_ALL for number in (1, 2)}
    with pytest.raises(EngineFailed):
        book.storage.write_turn({b"\x06%d" % each: b"1" for each in range(9)}, sync=True)
    with pytest.raises(EngineFailed):
        book.add(1, 3)


def test_a_closed_log_is_read_from_its_end() -> None:
    book = Book()
    for index in range(1, 300):
        book.add(1, index)
        book.apply(1, max(index - 3, 0))
    book.storage.close()
    book.open()
    book.check()
    assert sorted(book.found) == [entry(1, index) for index in (297, 298, 299)]
    book.add(1, 300)
    book.reopen(power=Random(1))
    book.check()


def test_looking_changes_nothing() -> None:
    book = Book()
    book.add(1, 1)
    book.storage.close()
    before = {name: bytes(file.durable) for name, file in book.disk.log.files.items()}
    for _ in range(3):
        book.open()
        book.storage.close()
    assert {name: bytes(file.durable) for name, file in book.disk.log.files.items()} == before


def test_a_record_larger_than_a_segment() -> None:
    book = Book()
    book.add(1, 1, 3 * SEGMENT_BYTES)
    book.add(1, 2)
    book.reopen(power=Random(1))
    book.check()


# --- segments


def test_segments_are_used_again() -> None:
    book = Book()
    for index in range(1, 2000):
        book.add(1, index)
        book.apply(1, index)
    assert book.segments <= 3
    book.reopen(power=Random(1))
    assert book.note == keys.u64(1999)


def test_a_group_that_writes_once_holds_nobody_up() -> None:
    """The state is written again, segment after segment."""
    book = Book()
    book.add(2, 1)
    for index in range(1, 1000):
        book.add(1, index)
        book.apply(1, index)
    assert book.segments <= 3
    book.reopen(power=Random(1))
    assert book.found[entry(2, 1)] == value(1)


def test_a_slow_follower_takes_more_segments_which_go_again() -> None:
    book = Book()
    for index in range(1, 301):
        book.add(1, index, 1000)
    many = book.segments
    assert many > 10
    book.apply(1, 300)
    for index in range(301, 400):
        book.add(1, index)
        book.apply(1, index)
    assert book.segments <= 3
    book.reopen(power=Random(1))
    book.check()


@pytest.mark.parametrize("gathered", [0, 3, 50])
def test_the_log_keeps_entries_until_the_state_is_durable(gathered: int) -> None:
    """Applied is not durable: what memory or power loses of the state is still in the log."""
    for seed in range(40):
        book = Book(gathered=gathered)
        last = Random(seed).randint(1, 200)
        for index in range(1, last + 1):
            book.add(1, index)
            book.apply(1, index)
        book.disk.crash(Random(seed))
        book.open()
        applied = int.from_bytes(book.storage.get(STATE) or b"", "big")
        assert [entry(1, index) in book.found for index in range(applied + 1, last + 1)] == (
            [True] * (last - applied)
        )


class Later:
    """Work without a waiting caller happens when the test says."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def both(self, log: Callable[[], None], state: Callable[[], None], keys: int) -> None:
        log()
        state()

    def later(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def close(self) -> None:
        for work in self.waiting:
            work()


def test_entries_let_go_of_during_a_sync_of_the_state_stay() -> None:
    book = Book()
    book.storage._writer = later = Later()
    index = 0
    while not later.waiting:
        book.add(1, index := index + 1)
    later.waiting.pop()()
    while not later.waiting:  # nothing is applied by now that becomes durable
        book.add(1, index := index + 1)
    book.apply(1, index)
    later.waiting.pop()()
    book.add(1, index := index + 1)
    book.disk.crash(Random(3))
    book.disk._durable = book.disk._durable.updated({STATE: None})
    book.open()
    assert len(book.found) == index


def test_opening_again_and_again_takes_no_more_room() -> None:
    book = Book()
    for index in range(1, 400):
        book.add(1, index)
        book.apply(1, index)
        if index % 5 == 0:
            book.reopen(power=Random(index) if index % 2 else None)
        if index % 17 == 0:
            book.storage.close()
            book.open()
    assert book.segments <= 3


def test_records_of_a_killed_process_are_durable_once_they_count() -> None:
    """It lay in the system's cache; the next record says that all before it is durable."""
    for seed in range(10):
        book = Book()
        book.add(1, 1)
        book.disk.write_faults = {book.disk.writes + 1: WriteFault.THERE_WHOLE}
        with pytest.raises(EngineFailed):
            book.storage.write_turn({entry(1, 2): value(2)}, sync=True)
        book.reopen()
        assert entry(1, 2) in book.found
        book.storage.write_turn({entry(1, 3): value(3)}, sync=True)
        book.reopen(power=Random(seed))
        assert len(book.found) == 3


def test_records_of_a_failed_closing_are_durable_once_they_count() -> None:
    """Found by a simulated cluster: a record that closes a log need not be durable."""
    for seed in range(10):
        book = Book()
        book.add(1, 1)
        book.disk.write_faults = {book.disk.writes + 2: WriteFault.THERE_WHOLE}
        with pytest.raises(EngineFailed):
            book.storage.close()
        book.open()
        book.add(1, 2)
        book.reopen(power=Random(seed))
        book.check()


def test_a_missing_spare_segment_is_no_failure_until_it_is_needed() -> None:
    book = Book()
    book.disk.log.room_bytes = SEGMENT_BYTES
    written = 0

    def fill() -> None:
        nonlocal written
        for index in range(1, 100):
            book.add(1, index)
            written = index

    with pytest.raises(EngineFailed, match="No space left"):
        fill()
    assert written > 5
    del book.groups.entries[1][written + 1]
    with pytest.raises(EngineFailed):
        book.add(1, 200)
    del book.groups.entries[1][200]
    book.disk.log.room_bytes = None
    book.reopen()
    book.check()
    book.add(1, written + 1)


# --- threads


def test_a_turn_is_written_by_two_threads() -> None:
    book = Book(writer=StateWriterThread)
    for index in range(1, 60):
        large = {keys.head_key(b"%d" % each): keys.u64(index) for each in range(2000)}
        book.storage.write_turn({entry(1, index): value(index), **large}, sync=True)
        assert book.storage.get(keys.head_key(b"7")) == keys.u64(index)
    book.storage.close()
    book.open()


class SlowDevice(FolderDevice):
    """A device whose new segments are made when the test says so."""

    def __init__(self, folder: Path, done: threading.Event) -> None:
        super().__init__(folder)
        self._done = done
        self.begun = threading.Event()
        self.waited_for: list[tuple[str, int]] = []
        self.made_beside: list[str] = []

    def create(self, name: str, size: int) -> None:
        if threading.current_thread() is threading.main_thread():
            self.waited_for.append((name, size))
        else:
            self.made_beside.append(name)
            self.begun.set()
            assert self._done.wait(30)
        super().create(name, size)


def test_turns_do_not_wait_for_a_segment_of_full_length(tmp_path: Path) -> None:
    done = threading.Event()
    devices: list[SlowDevice] = []

    def device(_: object) -> SlowDevice:
        devices.append(SlowDevice(tmp_path / "log", done))
        return devices[-1]

    thread = StateWriterThread()
    book = Book(device, writer=lambda: thread)
    for index in range(1, 10):
        book.add(1, index, BLOCK_BYTES)
        if thread._others:  # it may be late, and the name is whose who is first
            assert devices[0].begun.wait(30)
    waited_for = dict(devices[0].waited_for)
    assert len(waited_for) > 2
    made_beside = devices[0].made_beside[0]
    assert made_beside not in waited_for
    assert max(waited_for.values()) < SEGMENT_BYTES // 2
    done.set()
    book.storage.close()
    long = tmp_path / "log" / made_beside.removesuffix(".new")
    assert long.stat().st_size == SEGMENT_BYTES
    thread = StateWriterThread()
    book.disk.crash()
    book.open()
    book.check()
    book.storage.close()


def test_two_segments_that_are_made_at_once_have_two_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between listing the folder and looking at what is being made, the other one is done."""
    book = Book()
    log, device = book.storage._log, book.disk.log
    begun, goes_on = threading.Event(), threading.Event()
    create, names = device.create, device.names
    maker = threading.Thread(target=log.make_spare, daemon=True)

    def create_slowly(name: str, size: int) -> None:
        if threading.current_thread() is maker:
            begun.set()
            assert goes_on.wait(30)
        create(name, size)

    def list_before_it_is_done() -> list[str]:
        listed = names()
        if begun.is_set():
            goes_on.set()
            maker.join(30)
        return listed

    monkeypatch.setattr(device, "create", create_slowly)
    monkeypatch.setattr(device, "names", list_before_it_is_done)
    maker.start()
    assert begun.wait(30)
    made = log._make(SEGMENT_BYTES)
    assert [each.name for each in log._spares] == ["segment-2"]
    assert made.name == "segment-3"
    book.storage.close()


def test_a_segment_made_ahead_does_not_take_the_last_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Making it would fill the device before it fails, and whatever is written then fails, too."""
    book = Book()
    device, free = book.disk.log, SEGMENT_BYTES
    monkeypatch.setattr(book.storage.state, "free_bytes", lambda: free)
    for index in range(1, 60):
        if index == 50:
            assert len(device.files) > 2
            assert max(file.size for file in device.files.values()) < SEGMENT_BYTES
            free = 2 * SEGMENT_BYTES
        book.add(1, index)
        book.apply(1, index)
    assert max(file.size for file in device.files.values()) == SEGMENT_BYTES
    book.reopen()
    book.check()


def test_a_log_begins_short_and_does_not_stay_so() -> None:
    book = Book()
    sizes = [[file.size for file in book.disk.log.files.values()]]
    for index in range(1, 100):
        book.add(1, index)
        book.apply(1, index)
        sizes.append(sorted(file.size for file in book.disk.log.files.values()))
        if index % 10 == 0:
            book.reopen(power=Random(index))
            book.check()
    assert max(sizes[0]) < SEGMENT_BYTES // 2
    assert sizes[-40:] == 40 * [[SEGMENT_BYTES, SEGMENT_BYTES]]
    assert max(map(len, sizes)) == 3


@pytest.mark.usefixtures("long_segments")
@pytest.mark.parametrize("number", [1, 2])
def test_a_failure_in_either_thread_is_told(number: int) -> None:
    """By this turn or, of the state, by the next one that begins after it."""
    book = Book(writer=StateWriterThread)
    book.disk.write_faults = {book.disk.writes + number: WriteFault.NOT_AT_ALL}

    def write() -> None:
        for index in (1, 2):
            book.storage.write_turn({entry(1, index): value(index), STATE: b"1"}, sync=True)
        book.storage.sync()  # waits for the thread

    with pytest.raises(EngineFailed):
        write()
    book.storage.close()


def test_a_segment_that_cannot_be_opened_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = Book()
    device = book.disk.log
    before = set(device.files)

    def no_descriptor(_: str) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(device, "open", no_descriptor)
        for _ in range(3):
            with pytest.raises(OSError, match="Too many"):
                book.storage._log.make_spare()
    assert set(device.files) == before
    book.storage._log.make_spare()
    assert len(device.files) == len(before) + 1
