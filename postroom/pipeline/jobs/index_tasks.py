"""The work of tasks for a search index: plain functions, over batches of keys and values.

A build takes documents, and makes keys and values of the index of them.

A check finds documents whose index may differ. Documents and the keys of an index become *traces*,
each about one document. Sorted by document, those of one stand together, and are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Final, NamedTuple

import msgpack
import pyarrow as pa

from postroom.errors import ValueTooLarge
from postroom.layers.search import changes
from postroom.layers.search.changes import (
    Document,
    Past,
    Suspect,
    compare,
    frequency_of,
    past_of,
    read_document,
)
from postroom.layers.search.definition import Definition
from postroom.layers.search.index import packed
from postroom.layers.search.layout import BUILT, BUILT_GENERATION, LIVE, Layout, Posting, Record

# --- a build --------------------------------------------------------------------------------------


Pair = tuple[bytes, bytes]

SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_ROWS_AT_ONCE: Final = 8192


def built(definition: Definition, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield records, postings and counts of the documents in ``batches``.

    Args:
        definition: of the index.
        batches: keys and values of documents.
    """
    found = pairs(definition, chain.from_iterable(map(_pairs, batches)))
    while some := list(islice(found, _ROWS_AT_ONCE)):
        yield _batch(some, SCHEMA)


def pairs(definition: Definition, documents: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the pairs of the index for pairs of documents.

    The counts of the documents come last, under the first key.
    """
    layout = definition.layout
    first: bytes | None = None
    total = words = postings = refused = 0
    for key, stored in documents:
        first = key if first is None else first
        document = read_document(definition, key, stored)
        record = changes.built(document.words)
        stored_record = _packed(layout, key, record)
        if document.reason or stored_record is None:
            refused += 1
            continue
        yield layout.built_record(key), stored_record
        for word, (frequency, _) in record.words.items():
            posting = Posting(word, key, BUILT_GENERATION)
            yield layout.posting(posting), layout.pack_posting(frequency, record.length)
        total, words = total + 1, words + record.length
        postings += len(record.words)
    if first is not None:
        yield layout.built_sum(first), layout.pack([total, words, postings, refused])


def _packed(layout: Layout, key: bytes, record: Record) -> bytes | None:
    """Return a record as it is stored; ``None``: it is too large."""
    try:
        return packed(layout, key, record)
    except ValueTooLarge:
        return None


# --- a check --------------------------------------------------------------------------------------


TRACES: Final = "document binary, kind string, place binary, value binary"
SUSPECTS: Final = "document binary, strays binary, documents bigint, words bigint"

_TRACES: Final = pa.schema(
    [("document", pa.binary()), ("kind", pa.string()), ("place", pa.binary()),
     ("value", pa.binary())]
)  # fmt: skip
_SUSPECTS: Final = pa.schema(
    [("document", pa.binary()), ("strays", pa.binary()), ("documents", pa.int64()),
     ("words", pa.int64())]
)  # fmt: skip
_DOCUMENT: Final = "document"
_POSTING: Final = "posting"


class Trace(NamedTuple):
    """A trace of a document: its words, a record or a posting.

    Attributes:
        document: its key.
        kind: ``document`` (its words), ``live`` or ``built`` (a record), ``posting``.
        place: the key of a posting.
        value: as it is stored; of a document its words and why it has none.
    """

    document: bytes
    kind: str
    place: bytes
    value: bytes


class CheckedDocument(NamedTuple):
    """A suspect, if any, and the counts of the records of other documents.

    Attributes:
        suspect: or ``None``.
        documents, words: by records.
    """

    suspect: Suspect | None
    documents: int
    words: int


def document_traces(
    definition: Definition, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield traces of documents, which are keys and values."""
    for batch in batches:
        yield _batch(
            [document_trace(definition, key, stored) for key, stored in _pairs(batch)], _TRACES
        )


def document_trace(definition: Definition, key: bytes, stored: bytes) -> Trace:
    """Return the trace of a stored document."""
    words, reason = read_document(definition, key, stored)
    return Trace(key, _DOCUMENT, b"", msgpack.packb([dict(words), reason]))


def index_traces(
    definition: Definition, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield traces of the data of an index, which are keys and values."""
    for batch in batches:
        traces = (index_trace(definition, key, stored) for key, stored in _pairs(batch))
        yield _batch([each for each in traces if each is not None], _TRACES)


def index_trace(definition: Definition, key: bytes, stored: bytes) -> Trace | None:
    """Return the trace of a key of the index; ``None``: it is about no document."""
    kind, document, posting = definition.layout.read(key)
    return None if kind == "sums" else Trace(document, kind, key if posting else b"", stored)


def suspects(definition: Definition, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield suspects of traces that are sorted by document; the last row counts records."""
    found: list[tuple[object, ...]] = []
    documents = words = 0
    for each in compared(definition, _traces(batches)):
        documents += each.documents
        words += each.words
        if each.suspect is not None:
            found.append((each.suspect.key, msgpack.packb(each.suspect.strays), 0, 0))
            if len(found) == 1024:
                yield _batch(found, _SUSPECTS)
                found = []
    yield _batch([*found, (None, None, documents, words)], _SUSPECTS)


def compared(definition: Definition, traces: Iterable[Trace]) -> Iterator[CheckedDocument]:
    """Yield the comparison of each document in turn."""
    for key, some in groupby(traces, key=itemgetter(0)):
        yield _compare(definition, key, some)


def _compare(definition: Definition, key: bytes, traces: Iterable[Trace]) -> CheckedDocument:
    document: Document | None = None
    records: dict[str, bytes] = {}
    posting_keys: dict[Posting, bytes] = {}
    postings: dict[Posting, int] = {}
    for _, kind, place, value in traces:
        if kind == _DOCUMENT:
            document = Document(*msgpack.unpackb(value))
        elif kind == _POSTING:
            posting = definition.layout.read_posting(place)
            posting_keys[posting] = place
            postings[posting] = frequency_of(value, place)
        else:
            records[kind] = value
    past = past_of(records.get(LIVE), records.get(BUILT))
    known = Past() if past is None else past
    suspect = None
    if past is None or compare(definition, key, document, past, postings):
        named = known.postings(key)
        strays = tuple(place for posting, place in posting_keys.items() if posting not in named)
        suspect = Suspect(key, strays)
    counts = known.record
    return CheckedDocument(suspect, int(counts is not None), 0 if counts is None else counts.length)


def _pairs(batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    return zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _traces(batches: Iterable[pa.RecordBatch]) -> Iterator[Trace]:
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        yield from map(Trace._make, zip(*columns, strict=True))


def _batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
