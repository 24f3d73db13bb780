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

A check compares documents with their records and postings by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from postroom.errors import Invalid, StoreCorrupted
from postroom.layers.search.definition import Definition
from postroom.layers.search.layout import (
    BUILT_GENERATION,
    Posting,
    Record,
    unpack_posting,
    unpack_record,
)


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


# --- differences between an index and its documents -----------------------------------------------


Kind: TypeAlias = Literal[
    "unindexed", "unindexable", "deleted", "words", "record",
    "missing", "left over", "frequency", "sums",
]  # fmt: skip
"""A kind of difference.

* ``unindexed``: a document has no record: it was put without the index
* ``unindexable``: a document has no record, because it cannot be indexed
* ``deleted``: a record's document does not exist
* ``words``: a record has another frequency for a word than the document
* ``record``: there are two records of a document, or one cannot be read
* ``missing``, ``left over``: a posting does not exist, or exists and no record names it
* ``frequency``: a posting has another frequency than the record
* ``sums``: how many documents, or words, there are
"""


class Difference(NamedTuple):
    """One difference between the index and what it must be.

    Attributes:
        kind: the kind of the difference.
        key: the key of the document.
        word: the word, if it is about one.
        expected, found: frequencies, or sums; 0: none.
        reason: why a document cannot be indexed.
    """

    kind: Kind
    key: bytes
    word: str = ""
    expected: int = 0
    found: int = 0
    reason: str = ""


class Suspect(NamedTuple):
    """A document that may differ from its index.

    Attributes:
        key: the key of the document.
        strays: keys of postings that no record names.
    """

    key: bytes
    strays: tuple[bytes, ...] = ()


class Document(NamedTuple):
    """A document as the index must represent it.

    Attributes:
        words: its words with their frequencies; none, if it cannot be indexed.
        reason: why it cannot be indexed.
    """

    words: Mapping[str, int]
    reason: str = ""


def read_document(definition: Definition, key: bytes, stored: bytes) -> Document:
    """Return a stored document in the form for the index."""
    try:
        definition.check_key(key)
        return Document(definition.words(stored, key))
    except Invalid as error:
        return Document({}, str(error))


def compare(
    definition: Definition,
    key: bytes,
    document: Document | None,
    past: Past,
    postings: Mapping[Posting, int],
) -> list[Difference]:
    """Return the differences of one document.

    Args:
        definition: the definition of the index.
        key: the key of the document.
        document: the document; ``None``: there is none.
        past: its records.
        postings: its postings, with their frequencies; -1: one cannot be read.
    """
    return [
        *_record_differences(definition, key, document, past),
        *_posting_differences(key, past, postings),
    ]


def _record_differences(
    definition: Definition, key: bytes, document: Document | None, past: Past
) -> Iterator[Difference]:
    record = past.record
    if past.live and (past.built or past.live.deleted) and definition.state == "ready":
        yield Difference("record", key)
    if document is None:
        if record is not None:
            yield Difference("deleted", key)
        return
    if document.reason:
        yield Difference("unindexable", key, reason=document.reason)
    elif record is None:
        yield Difference("unindexed", key)
    if record is None:
        return
    words = document.words
    for word in sorted({*words, *record.words}):
        frequency, _ = record.words.get(word, (0, 0))
        expected = words.get(word, 0)
        if frequency != expected:
            yield Difference("words", key, word, expected, frequency)


def _posting_differences(
    key: bytes, past: Past, postings: Mapping[Posting, int]
) -> Iterator[Difference]:
    named = past.postings(key)
    for posting, frequency in sorted(named.items()):
        found = postings.get(posting, 0)
        if found == 0:
            yield Difference("missing", key, posting.word, frequency)
        elif found != frequency:
            yield Difference("frequency", key, posting.word, frequency, found)
    for posting in sorted(set(postings) - set(named)):
        yield Difference("left over", key, posting.word, 0, postings[posting])


def past_of(live: bytes | None, built: bytes | None) -> Past | None:
    """Return the stored records of a document; ``None``: one cannot be read."""
    try:
        return Past(*(None if each is None else unpack_record(each) for each in (live, built)))
    except StoreCorrupted:
        return None


def frequency_of(stored: bytes, key: bytes) -> int:
    """Return the frequency in a posting; -1: it cannot be read."""
    try:
        return unpack_posting(stored, key)[0]
    except StoreCorrupted:
        return -1
