"""A check of an index: its actual data, compared with what it must be.

Documents and records are written by the same transactions, so they must agree at any timestamp.
Postings follow later: between a commit and its deferred updates they differ, and nothing is wrong.
Thus a comparison at some timestamp only finds *suspects*. A second look is at a timestamp at which
the outbox can be read as well: updates that wait there count as carried out. All differences that
are left then are damage, and only these, however much the documents change meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from postroom import Delete, DeleteRange, Increment, Put, Timestamp, integer
from postroom.errors import Invalid, StoreCorrupted
from postroom.layers.search.changes import Past
from postroom.layers.search.definition import Definition, read
from postroom.layers.search.layout import (
    Posting,
    unpack_posting,
    unpack_record,
)

if TYPE_CHECKING:
    from postroom.aio import Database

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


class Checking:
    """A second look at suspects.

    Args:
        raw: the database, values as they are stored.
        definition: the definition of the index.
    """

    def __init__(self, raw: Database, definition: Definition) -> None:
        self._raw = raw
        self._definition = definition
        self._layout = definition.layout

    async def confirm(self, suspects: Iterable[Suspect]) -> list[Difference]:
        """Return the real differences of suspects.

        Raises:
            SnapshotTooOld: another node has become the leader meanwhile; call again.
            Invalid: the index was dropped or built anew meanwhile.
        """
        some = list(suspects)
        async with self._raw.hold(whole=True) as at:
            records = await self._records([each.key for each in some], at)
            wanted: dict[bytes, bytes | None] = {}
            for suspect, (_, past) in zip(some, records, strict=True):
                wanted |= dict.fromkeys(suspect.strays)
                if past is None:
                    continue
                wanted |= dict.fromkeys(map(self._layout.posting, past.postings(suspect.key)))
            keys = list(wanted)
            wanted = dict(zip(keys, await self._raw.get_many(keys, at=at), strict=True))
            async for request in self._waiting(at):
                _carry_out(request, wanted)
            self._check_same(await self._raw.get(self._definition.key, at=at))
        found: list[Difference] = []
        postings = self._by_document(wanted)
        for suspect, (stored, past) in zip(some, records, strict=True):
            if past is None:
                found.append(Difference("record", suspect.key))
                continue
            of = postings.get(suspect.key, {})
            document = (
                None if stored is None else read_document(self._definition, suspect.key, stored)
            )
            found += compare(self._definition, suspect.key, document, past, of)
        return found

    def _check_same(self, stored: bytes | None) -> None:
        """Check that the index has not been built anew."""
        if stored is None or read(stored).id != self._definition.id:
            raise Invalid(
                f"the search index {self._definition.name!r} was dropped or built anew while it "
                "was checked: check it again"
            )

    async def sums(self, at: Timestamp) -> tuple[int, int]:
        """Return how many documents and words the index counts, with updates that wait.

        Args:
            at: a timestamp that is protected as a whole.
        """
        layout = self._layout
        counters = (layout.documents, layout.words)
        stored = await self._raw.get_many(counters, at=at)
        found = {
            key: 0 if value is None else integer(value)
            for key, value in zip(counters, stored, strict=True)
        }
        async for request in self._waiting(at):
            if isinstance(request, Increment) and request.key in found:
                found[request.key] += request.by
        return found[layout.documents], found[layout.words]

    async def _records(
        self, keys: list[bytes], at: Timestamp
    ) -> list[tuple[bytes | None, Past | None]]:
        """Return documents and their records."""
        layout = self._layout
        asked = [each for key in keys for each in (key, layout.live(key), layout.built_record(key))]
        stored = await self._raw.get_many(asked, at=at)
        return [
            (stored[n], past_of(stored[n + 1], stored[n + 2])) for n in range(0, len(stored), 3)
        ]

    async def _waiting(self, at: Timestamp) -> AsyncIterator[object]:
        """Return the updates that wait, in the order in which they are carried out."""
        async for entries in self._raw.bulk.records("outbox", at=at):
            for entry in entries:
                if entry.update is not None:
                    yield entry.update.request

    def _by_document(self, found: Mapping[bytes, bytes | None]) -> dict[bytes, dict[Posting, int]]:
        postings: dict[bytes, dict[Posting, int]] = {}
        for key, stored in found.items():
            if stored is not None:
                posting = self._layout.read_posting(key)
                postings.setdefault(posting.key, {})[posting] = frequency_of(stored, key)
        return postings


def _carry_out(request: object, stored: dict[bytes, bytes | None]) -> None:
    match request:
        case Put() if request.key in stored:
            stored[request.key] = request.value
        case Delete() if request.key in stored:
            stored[request.key] = None
        case DeleteRange():
            for key in stored:
                if key >= request.start and (request.end is None or key < request.end):
                    stored[key] = None


__all__ = [
    "Checking",
    "Difference",
    "Document",
    "Kind",
    "Suspect",
    "compare",
    "frequency_of",
    "past_of",
    "read_document",
]
