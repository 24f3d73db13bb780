"""The log and the state together: reuse, torn ends, damage, conversion, replay."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random  # noqa: TID251 - made from a seed

import pytest

from postroom.errors import StoreCorrupted, VersionMismatch
from postroom.kv import keys
from postroom.kv.beside import KEYS_MIN, StateThread
from postroom.kv.engine import EngineFailed, WriteSet
from postroom.kv.log import format as log_format
from postroom.kv.log.device import Device, FolderDevice
from postroom.kv.log.format import BLOCK_BYTES, FIRST_RECORD_AT
from postroom.kv.log.writer import Log
from postroom.kv.marker import MARKER_KEY
from postroom.kv.memory import MemoryDisk, MemoryEngine, WriteFault
from postroom.kv.storage import Held, Storage

SEGMENT_BYTES = 64 * 1024
NOTE = keys.store_key("note")
STATE = keys.head_key(b"state")


def entry(group: int, index: int) -> bytes:
    return keys.raft_log_prefix(group) + b"l" + keys.u64(index)


def value(index: int, size: int = 100) -> bytes:
    return keys.u64(1) + bytes([index % 256]) * size


class Groups:
    """What groups keep in memory."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, bytes]] = {}
        self.bases: dict[int, int] = {}

    def __call__(self) -> Iterable[Held]:
        for group, entries in self.entries.items():
            base, last = self.bases.get(group, 0), max(entries, default=0)

            def values(
                first: int, last: int, entries: dict[int, bytes] = entries, base: int = base
            ) -> Iterable[tuple[int, bytes]]:
                return [(i, v) for i, v in entries.items() if first <= i <= last and i > base]

            yield Held(keys.raft_log_prefix(group) + b"l", base, 1, max(last, base), values)


class Book:
    """A storage, and what it must hold."""

    def __init__(
        self,
        device: Callable[[MemoryDisk], Device] | None = None,
        segment: int = SEGMENT_BYTES,
        gathered: int = 0,
    ) -> None:
        self.disk = MemoryDisk()
        self.segment = segment
        self.gathered = gathered
        self.device = device or (lambda disk: disk.log)
        self.groups = Groups()
        self.open()

    def open(self) -> None:
        engine = MemoryEngine(self.disk)
        try:
            self.storage = Storage.open(
                engine, self.device(self.disk), lambda: b"i" * 16, segment_bytes=self.segment,
                gathered_keys_max=self.gathered,
            )  # fmt: skip
        except BaseException:
            engine.close()
            raise
        self.found = {
            key: found
            for key, found in self.storage.iterate(keys.RAFT_LOG, keys.RANGE)
            if key[9:10] == b"l"
        }
        self.note = self.storage.get(NOTE)
        self.storage.serve(self.groups)

    def reopen(self, *, power: Random | None = None) -> None:
        self.disk.crash(power)
        self.open()

    def add(self, group: int, index: int, size: int = 100, *, sync: bool = True) -> None:
        self.groups.entries.setdefault(group, {})[index] = value(index, size)
        writes: WriteSet = {entry(group, index): value(index, size), NOTE: keys.u64(index)}
        self.storage.write_turn({**writes, STATE: keys.u64(index)}, sync=sync)

    def apply(self, group: int, index: int) -> None:
        """The state includes the entries up to ``index``, and nobody else needs them."""
        self.groups.bases[group] = index
        held = self.groups.entries[group]
        for each in [each for each in held if each <= index]:
            del held[each]

    def check(self) -> None:
        """All that is kept was found, and the newest note."""
        for group, entries in self.groups.entries.items():
            for index, stored in entries.items():
                assert self.found.get(entry(group, index)) == stored, f"{index} of {group}"

    @property
    def segments(self) -> int:
        return len(self.disk.log.files)


# --- what was written is there


def test_entries_and_notes_are_there_after_a_crash() -> None:
    book = Book()
    for index in range(1, 200):
        book.add(1, index)
    book.reopen(power=Random(1))
    book.check()
    assert book.note == keys.u64(199)
    assert book.segments > 10, "nobody has let go of anything"


def test_what_is_cut_does_not_come_back() -> None:
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


def test_what_waits_in_memory_is_in_the_log_and_in_the_state_when_it_is_closed() -> None:
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


def test_what_is_synced_includes_what_waits_in_memory() -> None:
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
    """What it has is written again, segment after segment."""
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
def test_nothing_goes_before_the_state_is_durable(gathered: int) -> None:
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
    """What nobody waits for happens when the test says."""

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


def test_what_was_let_go_of_while_the_state_was_synced_stays() -> None:
    book = Book()
    book.storage._beside = later = Later()
    index = 0
    while not later.waiting:
        book.add(1, index := index + 1)
    later.waiting.pop()()
    while not later.waiting:  # what is applied by now becomes durable: nothing
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


def test_what_a_killed_process_has_written_is_durable_once_it_counts() -> None:
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


def test_what_a_failed_closing_has_written_is_durable_once_it_counts() -> None:
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


def test_no_room_for_a_spare_segment_is_no_failure_until_it_is_needed() -> None:
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


# --- torn ends


@pytest.mark.parametrize("seed", range(30))
def test_a_write_that_the_power_cuts_short_is_there_or_not(seed: int) -> None:
    book = Book()
    for index in range(1, 6):
        book.add(1, index)
    book.disk.write_faults = {book.disk.writes + 1: WriteFault.THERE_WHOLE}
    with pytest.raises(EngineFailed):
        book.add(1, 6, 3000)
    del book.groups.entries[1][6]
    book.reopen(power=Random(seed))
    book.check()
    for index in range(6, 12):  # what is written now is never mixed up with what was
        book.add(1, index, 500)
        book.reopen(power=Random(seed))
        book.check()
        assert max(book.found) == entry(1, index)


@pytest.mark.parametrize("seed", range(30))
def test_unsynced_records_are_lost_from_some_place_on(seed: int) -> None:
    book = Book()
    for index in range(1, 6):
        book.add(1, index)
    for index in range(6, 30):
        book.add(1, index, sync=False)
    book.reopen(power=Random(seed))
    there = sorted(int.from_bytes(key[-8:], "big") for key in book.found)
    assert there == list(range(1, len(there) + 1))
    assert len(there) >= 5
    for index in [index for index in book.groups.entries[1] if index > len(there)]:
        del book.groups.entries[1][index]
    for index in range(len(there) + 1, len(there) + 5):
        book.add(1, index, 700)
        book.reopen(power=Random(seed))
        book.check()
        assert max(book.found) == entry(1, index)


def test_a_sync_without_anything_to_write_makes_durable_what_was_written() -> None:
    """``durability="interval"``: records are written, and synced later."""
    for seed in range(10):
        book = Book()
        for index in range(1, 40):
            book.add(1, index, sync=False)
        book.storage.write_turn({}, sync=True)
        book.reopen(power=Random(seed))
        book.check()


def test_a_synced_record_makes_those_before_it_durable() -> None:
    for seed in range(10):
        book = Book()
        for index in range(1, 40):
            book.add(1, index, sync=index == 39)
        book.reopen(power=Random(seed))
        book.check()


def test_what_followed_a_torn_record_is_not_read_behind_its_successor() -> None:
    """The same numbers, the same log, the right places: an earlier epoch."""
    book = Book()
    book.add(1, 1)
    for index in (2, 3, 4):
        book.add(1, index, sync=False)
    file = book.disk.log.files["segment-1"]
    file.sync()
    book.disk.crash()
    second = FIRST_RECORD_AT + 2 * BLOCK_BYTES
    assert any(file.durable[second : second + 100])
    third = bytes(file.durable[second + BLOCK_BYTES : second + 2 * BLOCK_BYTES])
    file.durable[second : second + BLOCK_BYTES] = bytes(BLOCK_BYTES)
    book.disk.log.mark(0)
    book.open()
    assert sorted(book.found) == [entry(1, 1)]
    del book.groups.entries[1]
    book.add(1, 2, 50)
    assert bytes(file.durable[second + BLOCK_BYTES : second + 2 * BLOCK_BYTES]) == third
    book.reopen()
    assert sorted(book.found) == [entry(1, 1), entry(1, 2)]


# --- damage: a follower, whose state knows nothing of these entries yet


def follower(folder: Path) -> Book:
    book = Book(lambda _: FolderDevice(folder))
    for index in range(1, 60):
        book.groups.entries.setdefault(1, {})[index] = value(index, 1500)
        book.storage.write_turn({entry(1, index): value(index, 1500)}, sync=True)
    return book


def attempts(folder: Path) -> Iterable[Callable[[Path], object]]:
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        yield lambda copy, name=path.name: (copy / name).unlink()
        for left in {0, size // 2, size - BLOCK_BYTES, size - 1}:
            yield lambda copy, name=path.name, left=left: shorten(copy / name, left)
        for begin in (0, BLOCK_BYTES, FIRST_RECORD_AT, size // 2):
            yield lambda copy, name=path.name, begin=begin: spoil(copy / name, begin, None)
        for begin in range(0, size, BLOCK_BYTES):
            yield lambda copy, name=path.name, begin=begin: spoil(copy / name, begin + 30, 1)


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[: max(size, 0)])


def spoil(path: Path, begin: int, flips: int | None) -> None:
    data = bytearray(path.read_bytes())
    if flips is None:
        data[begin:] = bytes(len(data[begin:]))
    elif begin < len(data):
        data[begin] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("closed", [False, True])
def test_a_log_that_lacks_anything_acknowledged_is_refused(tmp_path: Path, closed: bool) -> None:
    book = follower(tmp_path / "log")
    if closed:
        book.storage.close()
    refused, state = 0, book.disk.content
    for damage in attempts(tmp_path / "log"):
        book.disk.crash()
        book.disk._durable = state
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        damage(tmp_path / "copy")
        book.device = lambda _: FolderDevice(tmp_path / "copy")
        try:
            book.open()
            book.check()
            book.storage.close()
        except StoreCorrupted:
            refused += 1
        shutil.rmtree(tmp_path / "copy")
    assert refused > 20


def test_after_a_loss_of_power_later_records_tell_of_damage() -> None:
    """The mark may be an old one then."""
    book = Book()
    for index in range(1, 8):
        book.storage.write_turn({entry(1, index): value(index)}, sync=True)
    book.disk.crash()
    book.disk.log.mark(0)
    book.disk.log.files["segment-1"].durable[FIRST_RECORD_AT + 4 * BLOCK_BYTES + 50] ^= 1
    with pytest.raises(StoreCorrupted, match=r"record 5 cannot be read, but record \d+, at"):
        book.open()


def test_the_only_segment_without_a_header_is_refused() -> None:
    """Found by the simulator: a ``ValueError`` came out of it."""
    book = Book()
    book.add(1, 1)
    book.disk.crash()
    book.disk.log.files["segment-1"].durable[20] ^= 1
    with pytest.raises(StoreCorrupted, match="no segment can be read, but record 2 was durable"):
        book.open()


def test_a_state_that_was_rolled_back_is_refused() -> None:
    book = Book()
    before = None
    for index in range(1, 500):
        book.add(1, index)
        book.apply(1, index)
        if index == 3:
            before = book.disk.content
    assert before is not None
    book.disk.crash()
    book.disk._durable = before
    with pytest.raises(StoreCorrupted, match=r"The state of the store is damaged.*durable beyond"):
        book.open()


def test_a_later_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(log_format, "FORMAT_VERSION", 2)
        book = Book()
    book.disk.crash()
    with pytest.raises(VersionMismatch, match="the log is written in format 2"):
        book.open()


# --- failing


@pytest.mark.parametrize("fault", list(WriteFault))
@pytest.mark.parametrize("number", [1, 2])
def test_nothing_is_written_after_a_failure(fault: WriteFault, number: int) -> None:
    """Neither into the log nor into the state, whichever of them has failed."""
    book = Book()
    book.add(1, 1)
    book.disk.write_faults = {book.disk.writes + number: fault}
    with pytest.raises(EngineFailed):
        book.add(1, 2)
    writes = book.disk.writes
    for _ in range(2):
        with pytest.raises(EngineFailed):
            book.add(1, 3)
    book.storage.close()
    assert book.disk.writes == writes


# --- one of an earlier format


def old_store() -> tuple[MemoryDisk, dict[bytes, bytes]]:
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    stored = {
        keys.store_key("store"): b"\x93\x01\xc4\x01a\x01",
        keys.store_key("clock ceiling"): keys.u64(77),
        keys.raft_log_prefix(1) + b"h": b"hard",
        entry(1, 8): value(8),
        entry(1, 9): value(9, SEGMENT_BYTES),
        keys.raft_log_prefix(1) + b"s": b"spool",
        STATE: b"state",
    }
    engine.write(dict(stored), sync=True)
    engine.close()
    return disk, stored


def read_all(disk: MemoryDisk) -> dict[bytes, bytes]:
    engine = MemoryEngine(disk)
    try:
        storage = Storage.open(engine, disk.log, lambda: b"j" * 16, segment_bytes=SEGMENT_BYTES)
    except BaseException:
        engine.close()
        raise
    try:
        return dict(storage.iterate(b"", b"\xff"))
    finally:
        storage.close()


def test_a_store_of_format_1_is_converted() -> None:
    disk, stored = old_store()
    assert read_all(disk) == stored
    assert read_all(disk) == stored
    moved = [key for key, _ in disk.content.iterate(b"", keys.RANGE)]
    assert moved == [MARKER_KEY, keys.raft_log_prefix(1) + b"s"]


class Killed(Exception):
    pass


@pytest.mark.parametrize("power", [None, 1, 2, 3])
def test_a_conversion_that_is_cut_short_anywhere_is_begun_again(power: int | None) -> None:
    disk, stored = old_store()
    begun = disk.writes
    read_all(disk)
    for number in range(begun + 1, disk.writes + 1):
        disk, stored = old_store()

        def kill(at: int, number: int = number) -> None:
            if at == number:
                raise Killed

        disk.at_write = kill
        with pytest.raises(Killed):
            read_all(disk)
        disk.at_write = None
        disk.crash(None if power is None else Random(power))
        assert read_all(disk) == stored, f"killed at write {number}"
        assert read_all(disk) == stored


def test_something_else_is_left_alone() -> None:
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    engine.write({b"foreign": b"1"}, sync=True)
    engine.close()
    with pytest.raises(StoreCorrupted, match="not a Postroom store"):
        read_all(disk)
    assert list(disk.content.iterate(b"", b"\xff")) == [(b"foreign", b"1")]
    assert not disk.log.files


def test_a_log_without_its_state_is_refused() -> None:
    disk, _ = old_store()
    read_all(disk)
    empty = MemoryDisk()
    empty.log = disk.log
    with pytest.raises(StoreCorrupted, match="The state of the store is missing"):
        read_all(empty)


# --- threads


def test_a_large_turn_is_written_by_two_threads() -> None:
    book = Book()
    book.storage._beside = StateThread()
    for index in range(1, 60):
        large = {keys.head_key(b"%d" % each): keys.u64(index) for each in range(2 * KEYS_MIN)}
        book.storage.write_turn({entry(1, index): value(index), **large}, sync=True)
        assert book.storage.get(keys.head_key(b"7")) == keys.u64(index)
    book.storage.close()
    book.open()


class SlowDevice(FolderDevice):
    """Making a segment in the background takes until another one is wanted at once."""

    def __init__(self, folder: Path, wanted: threading.Event) -> None:
        super().__init__(folder)
        self._wanted = wanted
        self.created: list[str] = []

    def create(self, name: str, size: int) -> None:
        self.created.append(name)
        if threading.current_thread() is not threading.main_thread():
            assert self._wanted.wait(30)
        super().create(name, size)


def test_who_needs_a_segment_waits_for_the_one_that_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = threading.Event()
    device = SlowDevice(tmp_path / "log", wanted)
    book = Book(lambda _: device)
    begin = Log._begin_segment

    def begin_segment(log: Log, room: int) -> None:
        wanted.set()
        begin(log, room)

    monkeypatch.setattr(Log, "_begin_segment", begin_segment)
    book.storage._beside = StateThread()
    for index in range(1, 20):
        book.add(1, index)
    assert device.created == ["segment-1.new", "segment-2.new"]
    book.storage.close()


@pytest.mark.parametrize("number", [1, 2])
def test_a_failure_in_either_thread_is_told(number: int) -> None:
    book = Book()
    book.storage._beside = StateThread()
    book.disk.write_faults = {book.disk.writes + number: WriteFault.NOT_AT_ALL}
    large = {keys.head_key(b"%d" % each): b"1" for each in range(2 * KEYS_MIN)}
    with pytest.raises(EngineFailed):
        book.storage.write_turn({entry(1, 1): value(1), **large}, sync=True)
    book.storage.close()
