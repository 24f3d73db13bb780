"""The writes of a change of a document: the rules of the index, plain, without a store.

A change compares the words of the new document with the records of the old one. Its result is a new
record, postings that must come, postings that must go, and what it adds to the sums. ::

    old record:  {wine: 2 born 7, red: 1 born 7}
    new words:   {wine: 2, white: 1}                 at generation 9
    ⇒ record     {wine: 2 born 7, white: 1 born 9}
      put        (white, key, 9)
      delete     (red, key, 7)

These invariants hold in whatever order deferred updates of several transactions are carried out:

* A posting is put by one change only: its key has the generation of that change.
* A posting is deleted only by a change whose record does not name it, and no later record does.
* Therefore, for a posting that a record names, only the ``Put`` was ever deferred.

Before the bulk build is loaded, a change does not look at the writes of the build. The build writes
only records and postings of generation 0, which no change does. Neither overwrites the other.
Later changes treat a document's built record as a part of its past, and correct both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from postroom.layers.search.layout import BUILT_GENERATION, Posting, Record


@dataclass(frozen=True)
class Past:
    """The records of a document before a change.

    Attributes:
        live: the record of the last transaction; ``None``: there is none.
        built: the record of the bulk build; ``None``: there is none, or it does not count yet.
    """

    live: Record | None = None
    built: Record | None = None

    @property
    def record(self) -> Record | None:
        """Return the record that counts; ``None``: there is no such document."""
        counts = self.built if self.live is None else self.live
        return None if counts is None or counts.deleted else counts

    def postings(self, key: bytes) -> dict[Posting, int]:
        """Return all postings that may exist, with their frequencies."""
        found: dict[Posting, int] = {}
        for record in (self.built, self.live):
            if record is not None:
                for word, (frequency, born) in record.words.items():
                    found[Posting(word, key, born)] = frequency
        return found

    @property
    def counted(self) -> tuple[int, int]:
        """Return what it has added to the sums: documents, words."""
        records = [each for each in (self.live, self.built) if each and not each.deleted]
        return len(records), sum(each.length for each in records)


@dataclass(frozen=True)
class DocumentChange:
    """The writes of a change.

    Attributes:
        record: the live record; ``None``: there is to be none.
        puts: the postings that come, with their frequencies.
        deletes: the postings that go.
        documents, words: the amounts that are added to the sums.
    """

    record: Record | None
    puts: dict[Posting, int]
    deletes: list[Posting]
    documents: int
    words: int


def change(
    key: bytes,
    past: Past,
    words: Mapping[str, int] | None,
    read_timestamp: int,
    *,
    building: bool,
    afresh: bool = False,
) -> DocumentChange:
    """Return the writes of a change of a document.

    Args:
        key: the key of the document.
        past: its records, as the transaction has read them.
        words: the words of the new document, with their frequencies; ``None``: it is deleted.
        read_timestamp: the timestamp at which the transaction reads.
        building: whether the build may yet write a record of this document.
        afresh: whether all postings are written again, even if they exist.
    """
    before = None if afresh else past.record
    generation = read_timestamp
    if past.live is not None:  # another change in the same transaction
        generation = max(generation, past.live.generation)
    record = _record(before, words, generation)
    if record is None and building:
        record = Record(generation, -1)
    named = {} if record is None else Past(record).postings(key)
    old = past.postings(key)
    puts = {
        posting: frequency for posting, frequency in named.items() if old.get(posting) != frequency
    }
    deletes = [posting for posting in old if posting not in named]
    documents, length = past.counted
    new_documents, new_length = Past(record).counted
    return DocumentChange(record, puts, deletes, new_documents - documents, new_length - length)


def settle(key: bytes, past: Past) -> DocumentChange:
    """Return the writes that settle a document that was changed while the index was built.

    The build's record and postings go, unless the live record names them.
    """
    live = None if past.live is None or past.live.deleted else past.live
    named = {} if live is None else Past(live).postings(key)
    deletes = [posting for posting in past.postings(key) if posting not in named]
    documents, length = past.counted
    new_documents, new_length = Past(live).counted
    return DocumentChange(live, {}, deletes, new_documents - documents, new_length - length)


def built(words: Mapping[str, int]) -> Record:
    """Return the record of a document in the bulk build."""
    return Record(
        BUILT_GENERATION,
        sum(words.values()),
        {word: (frequency, BUILT_GENERATION) for word, frequency in words.items()},
    )


def _record(
    before: Record | None, words: Mapping[str, int] | None, generation: int
) -> Record | None:
    if words is None:
        return None
    known = {} if before is None else before.words
    entries = {}
    for word, frequency in words.items():
        had, born = known.get(word, (0, generation))
        entries[word] = (frequency, born if had == frequency else generation)
    return Record(generation, sum(words.values()), entries)


__all__ = ["DocumentChange", "Past", "built", "change", "settle"]
