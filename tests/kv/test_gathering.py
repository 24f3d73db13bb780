"""Turns that wait in memory for company: whoever reads finds them, and nothing of them is lost."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from functools import partial
from random import Random  # noqa: TID251 - made from a seed
from types import FrameType
from typing import Any

import pytest

from postroom.kv import background, keys
from postroom.kv.background import InlineStateWriter, StateWriter, StateWriterThread, Work
from postroom.kv.engine import EngineFailed, WriteSet
from postroom.kv.gathering import INSERTED_SHARE, SMALL_TURNS, Gathering
from postroom.kv.log_device import WriteFault
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.limits import GATHERED_BYTES_MAX

KEYS_MAX = 8


class State:
    """A state with something in it already."""

    def __init__(self, writer: StateWriter | None = None) -> None:
        self.disk = MemoryDisk()
        self.engine = MemoryEngine(self.disk)
        self.engine.write({b"a": b"old", b"c": b"old", b"e": b"old"}, sync=True)
        self.gathering = Gathering(self.engine, KEYS_MAX, self.mark, writer or InlineStateWriter())
        self.marks = 0

    def mark(self, writes: WriteSet) -> None:
        self.marks += 1
        writes[b"mark"] = b"%d" % self.marks

    @property
    def written(self) -> dict[bytes, bytes]:
        return dict(self.disk.content.iterate(b"", b"\xff"))

    def fail(self) -> None:
        self.disk.write_faults = {self.disk.writes + 1: WriteFault.NOT_AT_ALL}


def test_small_turns_become_one_batch() -> None:
    state = State()
    before = state.disk.writes
    for number in range(KEYS_MAX):
        state.gathering.add({b"k%d" % number: b"1", b"counter": b"%d" % number})
        assert state.gathering.is_full == (number == KEYS_MAX - 1)
    assert state.disk.writes == before
    state.gathering.flush()
    assert state.disk.writes == before + 1
    assert state.written[b"counter"] == b"7"
    assert state.written[b"mark"] == b"1"
    assert not state.gathering.is_full
    state.gathering.flush()
    assert state.disk.writes == before + 1, "there was nothing to write"


def test_large_values_do_not_wait() -> None:
    state = State()
    state.gathering.add({b"k": bytes(GATHERED_BYTES_MAX)})
    assert not state.gathering.is_full
    state.gathering.add({b"l": b"1"})
    assert state.gathering.is_full
    state.gathering.flush()
    assert not state.gathering.is_full


def test_a_large_turn_is_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding it to the small ones kept every thread waiting for 90 ms, and sorting it 380 ms."""
    monkeypatch.setattr("postroom.kv.gathering.LARGE", 10)
    monkeypatch.setattr("postroom.kv.gathering.FEW", 0)
    state, sizes = State(), list[int]()
    state.gathering.add({b"a": b"small", b"k05": b"small"})
    before = state.disk.writes
    large: WriteSet = {b"k%02d" % (number * 7 % 25): b"large" for number in range(25)}
    added = dict(large)
    state.gathering.add(large)
    assert state.disk.writes == before + 1
    assert state.written[b"k05"] == b"small"
    assert state.gathering._gathered is large, "nothing was copied"

    def counted(keys: object) -> list[bytes]:
        found = sorted(keys)  # type: ignore[call-overload]
        sizes.append(len(found))
        return found  # type: ignore[no-any-return]

    monkeypatch.setattr("postroom.kv.gathering.sorted", counted, raising=False)
    assert list(state.gathering.iterate(b"n", b"z")) == []
    assert state.disk.writes == before + 1, "that span holds nothing of it"
    assert [value for _, value in state.gathering.iterate(b"k05", b"k06")] == [b"large"]
    assert state.disk.writes == before + 2
    assert state.written | added == state.written | {b"mark": b"2"}
    state.gathering.add({b"k%02d" % number: b"again" for number in range(25)})
    assert max(sizes) == 10


def test_reads_find_gathered_writes() -> None:
    state = State()
    state.gathering.add({b"b": b"new", b"c": None})
    assert state.gathering.get(b"b") == b"new"
    assert state.gathering.get(b"c") is None
    assert state.gathering.get(b"a") == b"old"
    assert b"b" not in state.written
    assert list(state.gathering.iterate(b"a", b"f")) == [
        (b"a", b"old"),
        (b"b", b"new"),
        (b"e", b"old"),
    ]
    state.gathering.add({b"a": b"newer"})
    with_snapshot = state.gathering.snapshot()
    state.gathering.add({b"a": b"newest"})
    assert with_snapshot.get(b"a") == b"newer"
    with_snapshot.close()


def test_a_read_of_other_keys_writes_no_batch() -> None:
    state = State()
    before = state.disk.writes
    state.gathering.add({b"b": b"new", b"d": b"new"})
    assert list(state.gathering.iterate(b"c", b"d")) == [(b"c", b"old")]
    assert list(state.gathering.iterate(b"e", b"f", reverse=True)) == [(b"e", b"old")]
    assert state.disk.writes == before


def test_a_few_gathered_keys_of_a_span_are_laid_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch for each of them would be written in the thread of a commit."""
    monkeypatch.setattr("postroom.kv.gathering.FEW", 2)
    state = State()
    before = state.disk.writes
    state.gathering.add({b"b": b"new", b"c": None})
    expected = [(b"a", b"old"), (b"b", b"new"), (b"e", b"old")]
    assert list(state.gathering.iterate(b"a", b"f")) == expected
    assert list(state.gathering.iterate(b"a", b"f", reverse=True)) == expected[::-1]
    assert state.disk.writes == before
    state.gathering.add({b"d": b"new"})
    assert len(list(state.gathering.iterate(b"a", b"f"))) == 4
    assert state.disk.writes == before + 1, "more keys than that are written first"


def test_a_read_shows_the_writes_of_its_beginning() -> None:
    state = State()
    state.gathering.add({b"b": b"1"})
    pairs = state.gathering.iterate(b"a", b"d")
    assert next(pairs) == (b"a", b"old")
    state.gathering.add({b"b": b"2", b"bb": b"2", b"c": None})
    state.gathering.flush()
    assert list(pairs) == [(b"b", b"1"), (b"c", b"old")]


def test_a_batch_does_not_end_while_a_read_of_its_keys_begins() -> None:
    """A key that has left memory by then must not be missing in the engine as it was before."""
    state = State()
    iterate, ended = state.engine.iterate, list[bool]()

    def begun_late(*span: bytes, reverse: bool = False) -> object:
        flush = threading.Thread(target=state.gathering.flush, daemon=True)
        flush.start()
        flush.join(0.05)
        ended.append(not flush.is_alive())
        return iterate(*span, reverse=reverse)

    state.engine.iterate = begun_late  # type: ignore[assignment, method-assign]
    state.gathering.add({b"b": b"new"})
    assert (b"b", b"new") in list(state.gathering.iterate(b"a", b"c"))
    assert ended == [False]


def test_the_index_of_gathered_keys_does_not_grow_with_repeated_turns() -> None:
    state = State()
    for number in range(1000):
        state.gathering.add({b"k": b"%d" % number})
        assert list(state.gathering.iterate(b"k", b"l")) == [(b"k", b"%d" % number)]
    assert sum(map(len, state.gathering._index._parts)) <= INSERTED_SHARE + 1


class SlowState(State):
    """A state whose batches are written when the test says so."""

    def __init__(self, writer: StateWriter | None = None) -> None:
        super().__init__(writer)
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.write = self.engine.write
        self.engine.write = self.write_slowly  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.flush, daemon=True)
        self.refused = False

    def write_slowly(self, writes: WriteSet, *, sync: bool) -> None:
        self.begun.set()
        assert self.goes_on.wait(60)
        self.write(writes, sync=sync)

    def flush(self) -> None:
        try:
            self.gathering.flush()
        except EngineFailed:
            self.refused = True

    def __enter__(self) -> SlowState:
        self.thread.start()
        assert self.begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.goes_on.set()
        self.thread.join()


def read_beside(state: State, lower: bytes, upper: bytes) -> list[list[tuple[bytes, bytes]]]:
    """Return what another thread reads, unless it has to wait."""
    found: list[list[tuple[bytes, bytes]]] = []
    reader = threading.Thread(
        target=lambda: found.append(list(state.gathering.iterate(lower, upper))), daemon=True
    )
    reader.start()
    reader.join(60)
    return found


def test_a_read_of_other_keys_does_not_wait_for_a_batch_under_way() -> None:
    state = SlowState()
    state.gathering.add({b"b": b"new"})
    with state:
        assert read_beside(state, b"c", b"d") == [[(b"c", b"old")]]
        state.gathering.add({b"x": b"1"})
        assert read_beside(state, b"c", b"d") == [[(b"c", b"old")]]
        state.goes_on.set()
        assert read_beside(state, b"a", b"c") == [[(b"a", b"old"), (b"b", b"new")]]
        assert read_beside(state, b"x", b"y") == [[(b"x", b"1")]]


class HandedOver:
    """A slow state whose batches a thread writes; the first of them is under way."""

    def __init__(self) -> None:
        self.thread = StateWriterThread()
        self.state = SlowState(self.thread)
        self.gathering = self.state.gathering

    def __enter__(self) -> HandedOver:
        self.gathering.add({b"b": b"1", b"c": b"1"})
        self.gathering.hand_over()
        assert self.state.begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.state.goes_on.set()
        self.thread.close()


def test_a_turn_that_hands_a_batch_over_does_not_wait_for_it() -> None:
    with HandedOver() as slow:
        gathering, state = slow.gathering, slow.state
        assert b"b" not in state.written
        assert gathering.get(b"b") == b"1"
        gathering.add({b"c": b"2", b"x": b"2"})
        assert gathering.get(b"c") == b"2"
        assert read_beside(state, b"d", b"f") == [[(b"e", b"old")]]
        state.goes_on.set()
        assert list(gathering.iterate(b"b", b"c")) == [(b"b", b"1")]
        assert b"x" not in state.written, "what that span holds none of goes on gathering"
        gathering.hand_over()
        assert list(gathering.iterate(b"n", b"y")) == [(b"x", b"2")]


class Later(InlineStateWriter):
    """A writer that does its work when it is waited for, and runs a look in each pause."""

    def __init__(self) -> None:
        self.work: Work | None = None
        self.look: Callable[[], None] = lambda: None
        self.pauses = 0

    def start(self, work: Work) -> None:
        self.work = work

    def finish(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()

    def pause(self) -> None:
        self.pauses += 1
        self.look()


def test_a_large_batch_is_filled_in_slices_beside_the_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Filling 300,000 keys at once kept everybody waiting for 130 ms."""
    monkeypatch.setattr("postroom.kv.gathering.LARGE", 10)
    monkeypatch.setattr("postroom.kv.engine.SLICE_KEYS", 5)
    writer = Later()
    state = State(writer)
    gathering = state.gathering
    heads = [keys.head_key(b"%02d" % number) for number in range(25)]

    def look() -> None:
        assert [gathering.look_up(head) for head in heads] == [b"1"] * 25
        assert not writer.pauses or heads[0] not in state.written

    gathering.add(dict.fromkeys(heads, b"1"))
    gathering.hand_over()
    look()
    writer.look = look
    gathering.flush()
    writer.look = lambda: None
    assert writer.pauses == 2 * (26 // 5 + 1), "once for the notes, and once for the batch"
    assert [gathering.look_up(head) for head in heads] == [b"1"] * 25
    assert heads[0] in state.written
    assert gathering.look_up(keys.head_key(b"never was")) is None


def test_the_keys_of_a_large_batch_that_failed_stay_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("postroom.kv.gathering.LARGE", 10)
    writer = Later()
    state = State(writer)
    heads = [keys.head_key(b"%02d" % number) for number in range(25)]
    state.gathering.add(dict.fromkeys(heads, b"1"))
    state.gathering.hand_over()
    state.fail()
    with pytest.raises(EngineFailed):
        state.gathering.flush()
    assert [state.gathering.look_up(head) for head in heads] == [b"1"] * 25
    with pytest.raises(EngineFailed):
        state.gathering.add({b"x": b"1"})


class Counting(InlineStateWriter):
    """A writer that counts what it is given to do."""

    started = 0

    def start(self, work: Work) -> None:
        self.started += 1
        super().start(work)


def test_a_batch_of_many_small_turns_is_written_at_once() -> None:
    """Each of them would wake the thread that writes it, in vain."""
    writer = Counting()
    gathering = State(writer).gathering
    for _ in range(SMALL_TURNS):
        gathering.add({b"c": b"1"})
    gathering.hand_over()
    assert (writer.started, gathering.get(b"c")) == (0, b"1")
    for _ in range(SMALL_TURNS - 1):
        gathering.add({b"c": b"2"})
    gathering.hand_over()
    assert (writer.started, gathering.get(b"c")) == (1, b"2")
    large = bytes(GATHERED_BYTES_MAX // SMALL_TURNS + 1)
    for _ in range(SMALL_TURNS):
        gathering.add({b"c": large})
    gathering.hand_over()
    assert (writer.started, gathering.get(b"c")) == (2, large), "that takes the engine long"
    for _ in range(SMALL_TURNS):
        gathering.add({b"c": b"3"})
    gathering.add({b"%d" % number: b"4" for number in range(KEYS_MAX + 1)})
    gathering.hand_over()
    assert (writer.started, gathering.get(b"0")) == (3, b"4"), "and so does that"


def test_the_next_batch_waits_for_the_one_before() -> None:
    with HandedOver() as slow:
        slow.gathering.add({b"c": b"2"})
        before = slow.state.disk.writes
        next_one = threading.Thread(target=slow.gathering.hand_over, daemon=True)
        next_one.start()
        assert slow.state.disk.writes == before
        slow.state.goes_on.set()
        next_one.join(60)
        slow.gathering.flush()
    assert slow.state.written[b"c"] == b"2"
    assert slow.state.written[b"mark"] == b"2"


def test_the_writes_of_a_failed_handed_over_batch_stay_readable() -> None:
    """The next write is told, and the one after it."""
    with HandedOver() as slow:
        slow.gathering.add({b"c": b"2"})
        slow.state.fail()
        slow.state.goes_on.set()
        with pytest.raises(EngineFailed):
            slow.gathering.settle()
        assert list(slow.gathering.iterate(b"b", b"d")) == [(b"b", b"1"), (b"c", b"2")]
        for _ in range(2):
            with pytest.raises(EngineFailed):
                slow.gathering.add({b"d": b"3"})
        with pytest.raises(EngineFailed):
            slow.gathering.hand_over()
    assert slow.gathering.get(b"b") == b"1"
    assert slow.gathering.get(b"c") == b"2"


def test_writes_added_beside_a_failed_batch_stay_readable() -> None:
    state = SlowState()
    state.gathering.add({b"b": b"1", b"c": b"1"})
    with state:
        state.gathering.add({b"c": b"2", b"d": b"2"})
        state.fail()
    assert state.refused
    expected = [(b"a", b"old"), (b"b", b"1"), (b"c", b"2"), (b"d", b"2")]
    assert list(state.gathering.iterate(b"a", b"e")) == expected
    assert [state.gathering.get(key) for key in (b"b", b"c", b"d")] == [b"1", b"2", b"2"]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_writes_of_a_failed_batch_stay_readable(reverse: bool) -> None:
    """A read is not told. The next write is."""
    state = State()
    state.gathering.add({b"b": b"new", b"c": None, b"z": b"new"})
    state.fail()
    expected = [(b"a", b"old"), (b"b", b"new"), (b"e", b"old")]
    found = list(state.gathering.iterate(b"a", b"f", reverse=reverse))
    assert found == (expected[::-1] if reverse else expected)
    assert state.gathering.get(b"c") is None
    assert state.gathering.get(b"z") == b"new"
    snapshot = state.gathering.snapshot()
    assert snapshot.get(b"z") == b"new"
    assert snapshot.get(b"a") == b"old"
    assert list(snapshot.iterate(b"a", b"f", reverse=reverse)) == found
    snapshot.close()
    with pytest.raises(EngineFailed):
        state.gathering.add({b"y": b"newer"})
    with pytest.raises(EngineFailed):
        state.gathering.flush()
    with pytest.raises(EngineFailed):
        state.gathering.write({}, sync=True)


@pytest.mark.parametrize("seed", range(20))
def test_gathered_state_agrees_with_a_dictionary(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random turns, reads and flushes, against what a dictionary holds."""
    thread = StateWriterThread()
    random, state = Random(seed), State(thread)
    monkeypatch.setattr("postroom.kv.gathering.FEW", random.choice([0, 2, 512]))
    monkeypatch.setattr("postroom.kv.gathering.INSERTED_SHARE", random.choice([1, 64]))
    model = state.written
    names = [b"%02d" % number for number in range(30)]
    for _ in range(200):
        match random.choice(["add", "add", "add", "get", "iterate", "flush", "write"]):
            case "get":
                name = random.choice(names)
                assert state.gathering.get(name) == model.get(name)
            case "iterate":
                lower, upper = sorted(random.sample(names, 2))
                found = list(state.gathering.iterate(lower, upper, reverse=seed % 2 == 1))
                span = sorted((k, v) for k, v in model.items() if lower <= k < upper)
                assert found == (span[::-1] if seed % 2 else span)
            case "flush":
                state.gathering.flush()
            case kind:
                names_now = random.sample(names, random.randint(1, 4))
                writes = {
                    name: random.choice([None, b"%d" % random.getrandbits(20)])
                    for name in names_now
                }
                for name, value in writes.items():
                    if value is None:
                        model.pop(name, None)
                    else:
                        model[name] = value
                if kind == "write":
                    state.gathering.write(writes, sync=True)
                else:
                    state.gathering.add(dict(writes))
                    if state.gathering.is_full:
                        state.gathering.hand_over()
    thread.close()


def interrupted(act: Callable[[], object], lines: int) -> bool:
    """Return whether an interrupt after so many lines of these modules has ended ``act``."""
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        path = frame.f_code.co_filename
        if not path.endswith(("kv/gathering.py", "kv/background.py")):
            return None
        # Leaving a block counts as its first line, but no interrupt comes between that and the end.
        if event == "line" and "with " not in linecache.getline(path, frame.f_lineno):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("hands_over", [False, True])
def test_an_interrupt_at_any_line_leaves_nothing_out(
    hands_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt of a reader or a turn loses nothing: the next turn and the engine have all."""
    monkeypatch.setattr(background, "LOOKS_AGAIN_SECONDS", 0.001)
    lines, goes_on = 0, True
    while goes_on:
        thread = StateWriterThread()
        state = State(thread)
        gathering, model = state.gathering, state.written
        for value in (b"1", b"2", b"3"):
            writes: WriteSet = {b"b" + value: value, b"c": value}
            model.update(writes)
            gathering.add(dict(writes))
            if value == b"1":
                gathering.hand_over()
            elif value == b"2":
                read = partial(gathering.iterate, b"b", b"c")
                goes_on = interrupted(gathering.hand_over if hands_over else read, lines)
                assert gathering.get(b"c") == b"2"
                assert list(gathering.iterate(b"b", b"c")) == [(b"b1", b"1"), (b"b2", b"2")]
        gathering.flush()
        thread.close()
        assert {key: state.engine.get(key) for key in model} == model
        lines += 1
    assert lines > 10
