"""The log on the engine: what is written, what is found again, and what is refused."""

from __future__ import annotations

import random  # noqa: TID251 (seeded)
from itertools import pairwise

import msgspec
import pytest

from postroom.errors import StoreCorrupted
from postroom.kv.engine import WriteSet
from postroom.kv.keys import raft_log_prefix
from postroom.kv.memory import MemoryEngine
from postroom.raft.journal import Journal
from postroom.raft.membership import Members
from postroom.raft.stored_log import membership_payload

PREFIX = raft_log_prefix(7)


class Book:
    """A journal with an engine, turn by turn."""

    def __init__(self, applied_index: int = 0) -> None:
        self.engine = MemoryEngine()
        self.applied_index = applied_index
        self.journal = self.open()
        self.turn()

    def open(self) -> Journal:
        return Journal.open(self.engine, PREFIX, Members((1, 2)), self.applied_index)

    def reopen(self) -> Journal:
        again = self.open()
        assert again._entries == self.journal._entries
        assert (again.term, again.vote) == (self.journal.term, self.journal.vote)
        assert again.members == self.journal.members
        assert again.bytes_kept == self.journal.bytes_kept
        return again

    def turn(self, *changes: tuple) -> WriteSet:
        writes: WriteSet = {}
        self.journal.begin(writes)
        for name, *arguments in changes:
            # A member enters a term before it has entries of that term.
            term = arguments[2 if name == "add" else 1] if name in ("add", "restart") else 0
            if term > self.journal.term:
                self.journal.set_term(term, None)
            getattr(self.journal, name)(*arguments)
        self.journal.end()
        self.engine.write(writes, sync=True)
        return writes

    def key(self, index: int) -> bytes:
        return PREFIX + b"l" + index.to_bytes(8, "big")


def test_the_layout_is_as_documented() -> None:
    book = Book()
    writes = book.turn(("set_term", 3, 2), ("add", b"\0x", 1, 3))
    assert writes == {
        b"\x02" + (7).to_bytes(8, "big") + b"l" + (1).to_bytes(8, "big"): b"\0" * 7 + b"\x03\0x",
        PREFIX + b"h": msgspec.msgpack.encode([3, 2, 0, 0, [[1, 2], [], []], False]),
    }


def test_entries_are_found_again() -> None:
    book = Book()
    book.turn(("set_term", 1, None), ("add", b"\0a", 1, 1), ("add", b"\0b", 2, 1))
    book.turn(("set_term", 5, 2), ("add", b"\0c", 3, 5))
    assert book.reopen().entries(1, 3) == [(b"\0a", 1, 1), (b"\0b", 2, 1), (b"\0c", 3, 5)]


def test_an_entry_added_and_dropped_in_one_turn_leaves_no_trace() -> None:
    book = Book()
    book.turn(("set_term", 1, 1))
    assert book.turn(("add", b"\0a", 1, 1), ("drop", 1)) == {}
    assert book.turn(("add", b"\0a", 2, 1), ("cut", 2)) == {}
    book.applied_index = 1
    book.reopen()


def test_an_entry_that_is_cut_and_added_again_is_overwritten() -> None:
    book = Book()
    book.turn(("add", b"\0a", 1, 1), ("add", b"\0b", 2, 1))
    assert book.turn(("cut", 2), ("add", b"\0z", 2, 4))[book.key(2)][8:] == b"\0z"  # type: ignore[index]
    assert book.turn(("cut", 2), ("add", b"\0y", 2, 5), ("cut", 2))[book.key(2)] is None
    book.reopen()


def test_dropping_writes_where_the_log_begins_if_it_does_not_end_there() -> None:
    book = Book()
    book.turn(*[("add", b"\0a", n, n) for n in (1, 2, 3)])
    book.applied_index = 2
    writes = book.turn(("drop", 2))
    assert {book.key(1), book.key(2), PREFIX + b"h"} == set(writes)
    assert book.reopen().term_at(2) == 2


def test_a_group_of_one_that_grows_writes_where_its_log_begins() -> None:
    book = Book()
    book.turn(("set_term", 4, 1))
    assert book.turn(("pass_over", 90, 4)) == {}
    book.applied_index = 90
    assert book.reopen().term_at(90) == 4
    assert PREFIX + b"h" in book.turn(("add", b"\0x", 91, 4))
    book.reopen()


def test_members_go_with_the_entries_that_set_them() -> None:
    book = Book()
    three, one = Members((1, 2), (3,)), Members((1,))
    book.turn(("add", membership_payload(three), 1, 1), ("add", membership_payload(one), 2, 1))
    assert (book.journal.members, book.journal.members_at(1)) == (one, three)
    assert book.journal.members_at(0) == Members((1, 2))
    book.reopen()
    book.turn(("cut", 2))
    assert book.journal.members == three
    book.applied_index = 1
    book.turn(("drop", 1))
    assert book.reopen().members == three


def test_a_snapshot_replaces_the_log() -> None:
    book = Book()
    book.turn(("add", b"\0a", 1, 1), ("add", b"\0b", 2, 1))
    book.applied_index = 50
    writes = book.turn(("restart", 50, 8, Members((3,), (4,))), ("add", b"\0c", 51, 9))
    assert writes[book.key(1)] is writes[book.key(2)] is None
    assert book.reopen().members == Members((3,), (4,))


def test_a_range_may_begin_with_a_state() -> None:
    """One half of a split does: entries before the state are nobody's."""
    book = Book(applied_index=10)
    assert (book.journal.base_index, book.journal.last_index) == (10, 10)
    book.turn(("add", b"\0x", 11, 1))
    book.reopen()


def test_random_turns_are_found_again() -> None:
    rng = random.Random(5)
    for _ in range(30):
        book = Book()
        for _ in range(20):
            book.turn(*random_changes(rng, book))
            book.reopen()


def random_changes(rng: random.Random, book: Book) -> list[tuple]:
    """Return changes that go together: each depends on those before."""
    log = book.journal
    last, base, term = log.last_index, log.base_index, log.last_term
    changes: list[tuple] = []
    for _ in range(rng.randint(0, 4)):
        choice = rng.randint(0, 3)
        if choice == 0 and last > max(base, book.applied_index):
            last = rng.randint(max(base, book.applied_index) + 1, last) - 1
            changes.append(("cut", last + 1))
        elif choice == 1 and last > base:
            base = book.applied_index = rng.randint(max(base, book.applied_index), last)
            changes.append(("drop", base))
        else:
            last, term = last + 1, term + rng.randint(0, 1)
            changes.append(("add", b"\0x", last, term))
    return changes


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"l" + (2).to_bytes(8, "big"), None, "entry 2 is missing, 3 follows 1"),
        (b"l" + (2).to_bytes(8, "big"), b"short", "too short"),
        (b"l\0\0", b"\0" * 20, "misplaced"),
        (b"l" + (2).to_bytes(8, "big"), b"\0" * 8 + b"\0x", "term falls from 1 to 0"),
        (b"l" + (2).to_bytes(8, "big"), b"\0" * 7 + b"\1\3?", "entry 2 is unreadable"),
        (b"h", b"\xc1", "unreadable"),
        (b"h", msgspec.msgpack.encode([1, "x"]), "unreadable"),
        (
            b"h",
            msgspec.msgpack.encode([3, None, 1, 1, [[1], [], []], False]),
            "entry 2 is missing, 1 follows 1",
        ),
        (b"l" + (1).to_bytes(8, "big"), None, "entry 1 is missing, 2 follows 0"),
    ],
)
def test_damage_is_refused(key: bytes, value: bytes | None, message: str) -> None:
    book = Book()
    book.turn(*[("add", b"\0x", n, 1) for n in (1, 2, 3)])
    book.engine.write({PREFIX + key: value}, sync=True)
    with pytest.raises(StoreCorrupted, match=message):
        book.open()


def test_a_state_without_its_entries_is_refused() -> None:
    book = Book()
    book.turn(("add", b"\0x", 1, 1), ("add", b"\0x", 2, 1))
    book.applied_index = 5
    with pytest.raises(StoreCorrupted, match="ends at entry 2 but the state includes entry 5"):
        book.open()


def test_a_log_without_its_state_is_refused() -> None:
    book = Book()
    book.turn(("restart", 50, 8, Members((3, 4))))
    with pytest.raises(StoreCorrupted, match="begins after entry 50 but the state ends at 0"):
        book.open()


def test_a_removed_replica_leaves_nothing() -> None:
    book = Book()
    book.turn(*[("add", b"\0x", n, 1) for n in (1, 2, 3)])
    writes: WriteSet = {}
    book.journal.begin(writes)
    book.journal.erase(book.engine)
    book.engine.write(writes, sync=True)
    assert list(book.engine.iterate(b"\x02", b"\x03")) == []


def test_terms_never_fall() -> None:
    book = Book()
    book.turn(*[("add", b"\0x", n, n // 2) for n in range(1, 9)])
    terms = [term for _, _, term in book.journal.entries(1, 8)]
    assert all(one <= other for one, other in pairwise(terms))
    with pytest.raises(AssertionError):
        book.journal.add(b"\0x", 9, 1)
    with pytest.raises(AssertionError):
        book.journal.add(b"\0x", 20, 9)


def test_a_term_that_only_an_entry_tells_is_stored_before_anything_is_said_in_it() -> None:
    """The record of the term was lost with the power; nobody was told of a vote in it either."""
    book = Book()
    book.turn(("set_term", 6, 2), ("add", b"\0a", 1, 6))
    book.engine.write({book.key(2): (7).to_bytes(8, "big") + b"\0b"}, sync=True)
    journal = book.open()
    assert (journal.term, journal.vote) == (7, None)
    writes: WriteSet = {}
    journal.begin(writes)
    journal.end()
    assert journal.needs_sync
    assert msgspec.msgpack.decode(writes[PREFIX + b"h"] or b"")[:2] == [7, None]
    journal.begin({})
    assert not journal.needs_sync
