"""A segment that was begun and given up: the power failed before its first record was there.

::

    segment 4   │ 16 ... 26 │ room │     27 did not fit, and segment 5 was begun for it: the power
    segment 5   │ header: 27 │           fails. A smaller 27 goes into segment 4 then, and 28, which
    segment 6   │ header: 28 │ 28 ...    needs a larger file, into another one.
"""

from __future__ import annotations

from random import Random  # noqa: TID251 - made from a seed

import pytest

from postroom.errors import StoreCorrupted
from postroom.kv.engine import EngineFailed
from postroom.kv.log_device import WriteFault
from postroom.kv.log_reader import BLOCK_BYTES, FIRST_RECORD_AT, decode_header
from tests.kv.book import SEGMENT_BYTES, Book, entry

pytestmark = pytest.mark.usefixtures("long_segments")

HALF = SEGMENT_BYTES // 2


def begun_and_given_up(number: int, fault: WriteFault, power: Random | None) -> tuple[Book, int]:
    """Return a log whose segment ``number`` was begun and given up, and the next index."""
    book, index = Book(), 1
    for _ in range(number - 1):
        book.add(1, index, HALF)
        book.add(1, index + 1)
        index += 2
    book.disk.write_faults = {book.disk.writes + 3: fault}  # after the state and the header
    with pytest.raises(EngineFailed):
        book.add(1, index, HALF)
    del book.groups.entries[1][index]
    book.reopen(power=power)
    book.check()
    assert max(book.found) == entry(1, index - 1)
    return book, index


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("fault", [WriteFault.NOT_AT_ALL, WriteFault.TORN])
@pytest.mark.parametrize("number", [2, 3])
def test_a_segment_that_was_begun_and_given_up_is_not_missed(
    number: int, fault: WriteFault, again: bool
) -> None:
    """Found by a simulated cluster: the next segment does not begin with the same record."""
    book, index = begun_and_given_up(number, fault, Random(1))
    begun = book.disk.log.files[f"segment-{number}"]
    book.add(1, index)  # goes where there is still room
    if again:
        book.disk.write_faults = {book.disk.writes + 5: WriteFault.NOT_AT_ALL}
        with pytest.raises(EngineFailed):
            book.add(1, index + 1, 2 * SEGMENT_BYTES)
        del book.groups.entries[1][index + 1]
        book.reopen(power=Random(2))
        book.check()
        book.add(1, index + 1)
        index += 1
    book.add(1, index + 1, 3 * SEGMENT_BYTES)  # needs a larger segment
    header = decode_header(begun.read(0, BLOCK_BYTES))
    assert header is not None
    assert header.number == number
    for power in (None, Random(3)):
        book.reopen(power=power)
        book.check()
        assert max(book.found) == entry(1, index + 1)
    for later in range(index + 2, index + 100):  # given-up segments are used again, or go
        book.add(1, later, 3000)
    book.reopen(power=Random(4))
    book.check()
    left = book.disk.log.files.get(f"segment-{number}")
    assert left is None or decode_header(left.read(0, BLOCK_BYTES)) != header


@pytest.mark.parametrize("at", [0, FIRST_RECORD_AT])
def test_a_segment_that_was_begun_and_used_is_missed(at: int) -> None:
    book = Book()
    for index in range(1, 20):
        book.add(1, index, HALF)
    book.disk.crash()
    book.disk.log.mark(0)
    book.disk.log.files["segment-5"].durable[at + 10] ^= 1
    with pytest.raises(StoreCorrupted, match=r"cannot be read|is missing"):
        book.open()


@pytest.mark.parametrize("seed", range(60))
def test_acknowledged_records_survive_a_failed_write_anywhere(seed: int) -> None:
    """Again and again, with records of all sizes, of which some are let go."""
    chance, book, index = Random(seed), Book(), 1
    for _ in range(25):
        number = book.disk.writes + chance.randint(1, 12)
        book.disk.write_faults = {number: chance.choice(list(WriteFault))}
        wanted = None
        for _ in range(12):
            try:
                book.add(1, index, chance.choice([10, 3000, HALF, SEGMENT_BYTES]))
            except EngineFailed:
                wanted = book.groups.entries[1].pop(index)
                break
            index += 1
            if chance.random() < 0.2 and index > 20:
                book.apply(1, index - chance.randint(2, 10))
        book.disk.write_faults.clear()
        book.reopen(power=chance.choice([None, Random(seed)]))
        book.check()
        if wanted is not None and entry(1, index) in book.found:  # there, and nobody was told
            assert book.found[entry(1, index)] == wanted
            book.groups.entries[1][index] = wanted
            index += 1
