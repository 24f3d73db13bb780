"""Messages read ahead for the next reapers: given once, in order, and never wrongly."""

from __future__ import annotations

import pytest

from postroom.limits import READ_AHEAD_BYTES_MAX, READ_AHEAD_INBOXES_MAX
from postroom.messaging.inbox_reads import MESSAGES, ReadAhead

KEY = b"inbox"
PREFIX = b"engine key of "

Stored = list[tuple[bytes, bytes]]


def messages(*numbers: int, size: int = 1) -> Stored:
    return [(b"%020d" % number, bytes(size)) for number in numbers]


def ids(*numbers: int) -> list[bytes]:
    return [id_ for id_, _ in messages(*numbers)]


def read(ahead: ReadAhead, given: Stored, after: Stored, key: bytes = KEY) -> int:
    entries = iter([(PREFIX + id_, stored) for id_, stored in after])
    return ahead.read(key, given[0][0], given, next(entries), entries)


def filled(*numbers: int) -> ReadAhead:
    """Make messages of which 1 and then 2 were given by the engine, and the rest is read ahead."""
    ahead = ReadAhead()
    assert read(ahead, messages(1), messages(2)) == 0
    assert read(ahead, messages(2), messages(*numbers)) == len(numbers)
    return ahead


def test_only_who_goes_on_reads_ahead() -> None:
    ahead = ReadAhead()
    assert read(ahead, messages(5), messages(6, 7)) == 0
    assert read(ahead, messages(3), messages(4, 5)) == 0  # before it: something was given back
    assert read(ahead, messages(4), messages(5, 6)) == 2
    assert len(ahead) == 2


def test_messages_read_ahead_are_given_in_order() -> None:
    ahead = filled(3, 4, 5, 6)
    assert ahead.find(KEY, ids(3)[0], 1, 100) == (messages(3), ids(4)[0])
    ahead.give(KEY, 1)
    assert ahead.find(KEY, ids(3)[0] + b"\x00", 2, 100) == (messages(4, 5), ids(6)[0])
    ahead.give(KEY, 2)
    # The messages after the last one are not known.
    assert ahead.find(KEY, ids(6)[0], 1, 100) is None
    assert len(ahead) == 1


@pytest.mark.parametrize("asked", [0, -1, 4])
def test_a_gap_in_the_read_ahead_is_read_from_the_store(asked: int) -> None:
    assert filled(3, 4, 5, 6).find(KEY, ids(3)[0], asked, 100) is None


@pytest.mark.parametrize(("start", "found"), [(2, False), (3, True), (4, False)])
def test_the_read_ahead_serves_a_reap_that_begins_where_it_begins(start: int, found: bool) -> None:
    assert (filled(3, 4, 5).find(KEY, ids(start)[0], 1, 100) is not None) is found


def test_a_page_has_a_size_and_one_message_at_least() -> None:
    ahead = ReadAhead()
    read(ahead, messages(1), messages(2))
    read(ahead, messages(2), messages(3, 4, 5, 6, size=10))
    assert ahead.find(KEY, ids(3)[0], 3, 25) == (messages(3, 4, size=10), ids(5)[0])
    assert ahead.find(KEY, ids(3)[0], 3, 5) == (messages(3, size=10), ids(4)[0])


@pytest.mark.parametrize(("first", "left"), [(1, 0), (3, 0), (4, 1), (5, 2), (6, 3)])
def test_a_message_that_arrives_within_the_read_ahead_cuts_it_there(first: int, left: int) -> None:
    ahead = filled(3, 4, 5)
    ahead.arrives({KEY: ids(first)[0], b"another": b""})
    assert len(ahead) == left


def test_the_read_ahead_is_dropped_if_messages_may_have_arrived_within_it() -> None:
    ahead = filled(3, 4, 5, 6)
    ahead.give(KEY, 2)
    ahead.arrives({KEY: ids(1)[0]})
    assert len(ahead) == 0
    assert ahead.find(KEY, ids(5)[0], 1, 100) is None


def test_a_message_that_arrives_right_behind_the_given_ones_is_not_passed_over() -> None:
    ahead = filled(5, 6, 7)
    ahead.arrives({KEY: ids(3)[0]})
    assert ahead.find(KEY, ids(2)[0] + b"\x00", 1, 100) is None


@pytest.mark.parametrize(("gone", "left"), [((1, 2), 3), ((2, 3), 0), ((5, 1), 0), ((9,), 0)])
def test_a_message_removed_from_the_read_ahead_is_not_given(
    gone: tuple[int, ...], left: int
) -> None:
    ahead = filled(3, 4, 5)
    ahead.gone(KEY, ids(*gone))
    assert len(ahead) == left


def test_the_read_ahead_is_bounded_in_messages_and_inboxes() -> None:
    ahead = ReadAhead()
    many = messages(*range(2, 2 * MESSAGES))
    for number in range(READ_AHEAD_INBOXES_MAX + 3):
        key = b"%d" % number
        read(ahead, messages(0), messages(1), key)
        read(ahead, messages(1), many, key)
    assert len(ahead) == READ_AHEAD_INBOXES_MAX * MESSAGES
    assert ahead.find(b"0", ids(2)[0], 1, 100) is None


def test_the_read_ahead_is_bounded_in_bytes() -> None:
    ahead = ReadAhead()
    read(ahead, messages(1), messages(2))
    half = READ_AHEAD_BYTES_MAX // 2
    assert read(ahead, messages(2), messages(3, 4, 5, size=half)) == 2
    read(ahead, messages(3), messages(4, size=2 * half + 1))
    assert len(ahead) == 0
