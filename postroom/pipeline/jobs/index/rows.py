"""The tasks of a build: documents in, keys and values of the index out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from postroom.errors import ValueTooLarge
from postroom.layers.search import changes
from postroom.layers.search.checking import read_document
from postroom.layers.search.definition import Definition
from postroom.layers.search.index import packed
from postroom.layers.search.layout import BUILT_GENERATION, Layout, Posting, Record

Pair = tuple[bytes, bytes]

SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_ROWS_AT_ONCE: Final = 8192


def built(definition: Definition, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield records, postings and counts of the documents in ``batches``.

    Args:
        definition: of the index.
        batches: keys and values of documents.
    """
    some: list[Pair] = []
    for pair in pairs(definition, _documents(batches)):
        some.append(pair)
        if len(some) == _ROWS_AT_ONCE:
            yield _batch(some)
            some = []
    if some:
        yield _batch(some)


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


def _documents(batches: Iterable[pa.RecordBatch]) -> Iterator[Pair]:
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _batch(some: list[Pair]) -> pa.RecordBatch:
    keys, values = zip(*some, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=SCHEMA
    )


__all__ = ["built", "pairs"]
