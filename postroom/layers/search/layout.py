"""The layout of an index: its keys, and the values stored there.

All of it is under one prefix of ordinary keys (tuples of ``postroom.key``). It is therefore
replicated, exported and read by Spark like everything else::

    ("postroom.search", "definition", name)   the definition and state of an index
    ("postroom.search", "last id")            drawn from when an index is built anew
    ("postroom.search", "data", id,
        "live",  "record", key)           [generation, length, {word: [frequency, born]}]
        "live",  "word", word, key, born) [frequency, length]
        "built", "record", key)           the same two, as the bulk build has written them:
        "built", "word", word, key)         all are born at generation 0
        "built", "sums", key)             [documents, words] of a part of the build
        "sums", "documents" | "words")    counters, for the ranking

Values are packed like the documents, in JSON or MessagePack, so that a database with that codec can
scan over them. The first byte shows which of the two it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgpack

from postroom import key as tuple_key
from postroom import prefix as span_of
from postroom import unpack as unpack_key
from postroom.errors import StoreCorrupted, shorten

Packing: TypeAlias = Literal["json", "msgpack"]
Span: TypeAlias = tuple[bytes, bytes | None]

ROOT: Final = "postroom.search"
LIVE: Final = "live"
BUILT: Final = "built"
BUILT_GENERATION: Final = 0
"""The generation before any other: a timestamp is never 0."""

_RECORD: Final = "record"
_WORD: Final = "word"
_SUMS: Final = "sums"

LAST_ID: Final = tuple_key(ROOT, "last id")
DEFINITIONS: Final[Span] = span_of(tuple_key(ROOT, "definition"))
DATA: Final[Span] = span_of(tuple_key(ROOT, "data"))


def definition_key(name: str) -> bytes:
    """Return the key of the definition of an index."""
    return tuple_key(ROOT, "definition", name)


def id_of(data_key: bytes) -> str:
    """Return the id of the index whose data has a key in ``DATA``."""
    return str(unpack_key(data_key)[2])


@dataclass(frozen=True)
class Record:
    """The index's record of a document.

    Attributes:
        generation: when it was written: a timestamp, above that of any earlier record of the
            document; 0: by the bulk build.
        length: how many words the document has, repeated ones included; -1: it was deleted.
        words: for each word, how often it occurs, and at which generation its posting was born.
    """

    generation: int
    length: int
    words: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def deleted(self) -> bool:
        """Return whether it stands for a document that is gone."""
        return self.length < 0


class Posting(NamedTuple):
    """A posting: a document has a word. These are the fields of its key.

    Attributes:
        word: the word.
        key: the key of the document.
        born: the generation of the document.
    """

    word: str
    key: bytes
    born: int


class Row(NamedTuple):
    """The meaning of a key of an index's data.

    Attributes:
        kind: ``live`` or ``built`` (a record), ``posting``, or ``sums``.
        key: the key of the document; empty for sums.
        posting: the posting, if it is one.
    """

    kind: str
    key: bytes
    posting: Posting | None = None


class Layout:
    """The keys of one index's data.

    Args:
        id: the id of the data. An index that is built anew gets another one.
        packing: the packing of values.
    """

    def __init__(self, id: str, packing: Packing) -> None:  # noqa: A002 - the id of the data
        self.id = id
        self.packing = packing
        self._data = tuple_key(ROOT, "data", id)
        self._live_words = self._data + tuple_key(LIVE, _WORD)
        self._built_words = self._data + tuple_key(BUILT, _WORD)
        self._live_records = self._data + tuple_key(LIVE, _RECORD)
        self._built_records = self._data + tuple_key(BUILT, _RECORD)
        self.built = self._data + tuple_key(BUILT)
        self.documents = self._data + tuple_key(_SUMS, "documents")
        self.words = self._data + tuple_key(_SUMS, "words")

    @property
    def span(self) -> Span:
        """Return the span of all data."""
        return span_of(self._data)

    @property
    def live_records(self) -> Span:
        """Return the span of the records that transactions have written."""
        return span_of(self._live_records)

    @property
    def built_sums(self) -> Span:
        """Return the span of the sums that parts of the build have counted."""
        return span_of(self.built + tuple_key(_SUMS))

    def live(self, key: bytes) -> bytes:
        """Return the key of the record that a transaction has written of a document."""
        return self._live_records + tuple_key(key)

    def document_of(self, live_key: bytes) -> bytes:
        """Return the key of the document of such a record."""
        (key,) = unpack_key(live_key[len(self._live_records) :])
        return _as_bytes(key)

    def built_record(self, key: bytes) -> bytes:
        """Return the key of the record that the build has written of a document."""
        return self._built_records + tuple_key(key)

    def built_sum(self, key: bytes) -> bytes:
        """Return the key of the sums of the part of the build that begins with a document."""
        return self.built + tuple_key(_SUMS, key)

    def posting(self, posting: Posting) -> bytes:
        """Return the key of a posting."""
        word, key, born = posting
        if born == BUILT_GENERATION:
            return self._built_words + tuple_key(word, key)
        return self._live_words + tuple_key(word, key, born)

    def postings(self, word: str, *, prefix: bool = False) -> tuple[Span, Span]:
        """Return the spans of live and built postings of a word, or of all words with a prefix."""
        packed = tuple_key(word)[:-1] if prefix else tuple_key(word)  # text ends with a zero byte
        return span_of(self._live_words + packed), span_of(self._built_words + packed)

    def read_posting(self, key: bytes) -> Posting:
        """Return the posting of a key."""
        if key.startswith(self._live_words):
            word, document, born = unpack_key(key[len(self._live_words) :])
            return Posting(str(word), _as_bytes(document), int(born))  # type: ignore[arg-type]
        word, document = unpack_key(key[len(self._built_words) :])
        return Posting(str(word), _as_bytes(document), BUILT_GENERATION)

    def read(self, key: bytes) -> Row:
        """Return the meaning of a key of this index's data."""
        if key.startswith((self._live_words, self._built_words)):
            posting = self.read_posting(key)
            return Row("posting", posting.key, posting)
        for kind, start in ((LIVE, self._live_records), (BUILT, self._built_records)):
            if key.startswith(start):
                (document,) = unpack_key(key[len(start) :])
                return Row(kind, _as_bytes(document))
        return Row("sums", b"")

    # --- values

    def pack(self, value: Any) -> bytes:
        """Return a value in its stored form."""
        if self.packing == "json":
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        packed: bytes = msgpack.packb(value)
        return packed

    def pack_record(self, record: Record) -> bytes:
        """Return a record in its stored form."""
        return self.pack([record.generation, record.length, record.words])

    def pack_posting(self, frequency: int, length: int) -> bytes:
        """Return the value of a posting: how often the word occurs, and among how many words."""
        return self.pack([frequency, length])


def unpack(stored: bytes, key: bytes = b"") -> Any:
    """Return the value that ``pack`` has packed.

    Raises:
        StoreCorrupted: ``pack`` has not packed this.
    """
    try:
        return json.loads(stored) if stored[:1] in b"[{" else msgpack.unpackb(stored)
    except (ValueError, msgpack.UnpackException) as error:
        raise _damaged(key, stored) from error


def unpack_record(stored: bytes, key: bytes = b"") -> Record:
    """Return a record from its stored form.

    Raises:
        StoreCorrupted: it is none.
    """
    try:
        generation, length, words = unpack(stored, key)
        return Record(
            int(generation),
            int(length),
            {str(word): (int(each[0]), int(each[1])) for word, each in words.items()},
        )
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise _damaged(key, stored) from error


def unpack_posting(stored: bytes, key: bytes = b"") -> tuple[int, int]:
    """Return how often a posting's word occurs, and how many words the document had.

    Raises:
        StoreCorrupted: it is no posting.
    """
    try:
        frequency, length = unpack(stored, key)
        return int(frequency), int(length)
    except (TypeError, ValueError) as error:
        raise _damaged(key, stored) from error


def _damaged(key: bytes, stored: bytes) -> StoreCorrupted:
    return StoreCorrupted(
        f"{shorten(key)} has {shorten(stored)}, which no search index has written: somebody else "
        "has. Build the index anew"
    )


def _as_bytes(element: object) -> bytes:
    assert isinstance(element, bytes)
    return element
