"""A search index as applications use it, in its asyncio form (:mod:`postroom.layers.search`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from postroom import Delete, Increment, Put
from postroom.errors import Invalid, ValueTooLarge, shorten
from postroom.layers.search import changes
from postroom.layers.search import definition as definitions
from postroom.layers.search.changes import DocumentChange, Past, past_of, read_document
from postroom.layers.search.definition import Definition
from postroom.layers.search.layout import Layout, Record, definition_key, unpack_record
from postroom.layers.search.limits import RECORD_BYTES_MAX
from postroom.layers.search.matching import Hit, Matching, parse

if TYPE_CHECKING:
    from postroom.aio import Database, Transaction


class SearchIndex:
    """A full-text index over the documents with a prefix. :meth:`Database.search_index` makes it.

    Attributes:
        name: the name of the index.
    """

    def __init__(self, database: Database, name: str) -> None:
        self.name = name
        self._database = database
        self._raw = database.as_stored()
        self._known: Definition | None = None

    async def definition(self) -> Definition:
        """Return the definition of the index, and how far it is built.

        Raises:
            Invalid: there is no index of this name.
        """
        return self._read(await self._raw.get(definition_key(self.name)))

    # --- changing documents

    async def put(self, tx: Transaction, key: bytes, document: Any) -> None:
        """Set ``key`` to ``document`` when the transaction commits, and have the index follow.

        Args:
            tx: a transaction of the same database.
            key: the key of the document.
            document: its value, see ``tx.put``.

        Raises:
            Invalid: there is no such index.
            ValueError: the key does not begin with the prefix of the index.
            KeyTooLarge, ValueTooLarge: the key is too long for an index, or the document has too
                many different words.
            WrongType: the document is not of the format of the index.
            TransactionTooLarge: with the writes of the index, it has gathered more than 16 MiB.
        """
        await self._follow(tx, key, tx.packed(key, document))
        tx.put(key, document)

    async def delete(self, tx: Transaction, key: bytes) -> None:
        """Remove the document, if it exists, and its index data when the transaction commits.

        Args:
            tx: a transaction of the same database.
            key: the key of the document.

        Raises:
            Invalid, ValueError, KeyTooLarge, TransactionTooLarge: see :meth:`put`.
        """
        await self._follow(tx, key, None)
        tx.delete(key)

    async def refresh(self, tx: Transaction, key: bytes) -> None:
        """Have the index follow the present document: for one that was changed without the index.

        Args:
            tx: a transaction of the same database.
            key: the key of the document.

        Raises:
            Invalid, ValueError, KeyTooLarge, ValueTooLarge, WrongType, TransactionTooLarge: see
                :meth:`put`.
        """
        raw = tx.as_stored()
        await self._follow(tx, key, await raw.get(key))

    async def repair(self, tx: Transaction, key: bytes, strays: Iterable[bytes] = ()) -> None:
        """Write the index data of a document again, even if it is damaged.

        Args:
            tx: a transaction of the same database.
            key: the key of the document; it need not exist.
            strays: keys of postings that no record names; they are deleted.
        """
        raw = tx.as_stored()
        definition, past = await self._past(raw, key, damaged=True)
        stored = await raw.get(key)
        document = None if stored is None else read_document(definition, key, stored)
        words = None if document is None or document.reason else document.words
        building = definition.state == "building"
        change = changes.change(
            key, past, words, _read_timestamp(raw), building=building, afresh=True
        )
        for stray in strays:
            raw.enqueue_update(Delete(stray))
        for record in (definition.layout.live(key), definition.layout.built_record(key)):
            raw.delete(record)  # also one that cannot be read
        write(raw, definition.layout, key, past, change)

    async def _follow(self, tx: Transaction, key: bytes, stored: bytes | None) -> None:
        raw = tx.as_stored()
        definition, past = await self._past(raw, key)
        definition.check_key(key)
        words = None if stored is None else definition.words(stored, key)
        change = changes.change(
            key, past, words, _read_timestamp(raw), building=definition.state == "building"
        )
        write(raw, definition.layout, key, past, change)

    async def settle(self, tx: Transaction, key: bytes) -> bool:
        """Correct what transactions and the bulk build have written of a document.

        This is for the job that builds the index.

        For layers on top.

        Args:
            tx: a transaction of the same database.
            key: the key of the document.

        Returns:
            Whether there was anything to do.
        """
        raw = tx.as_stored()
        definition, past = await self._past(raw, key)
        change = changes.settle(key, past)
        if past.live is None or (past.built is None and not past.live.deleted):
            return False
        write(raw, definition.layout, key, past, change)
        return True

    async def _past(
        self, raw: Transaction, key: bytes, *, damaged: bool = False
    ) -> tuple[Definition, Past]:
        """Return the definition and the records of a document, as the transaction sees them.

        Args:
            raw: the transaction.
            key: the key of the document.
            damaged: whether to ignore records that cannot be read.
        """
        if self._known is None:
            self._known = await self.definition()
        while True:
            layout = self._known.layout
            keys = [self._known.key, layout.live(key), layout.built_record(key)]
            stored, live, built = await raw.get_many(keys)
            definition = self._read(stored)
            if definition.id == self._known.id:
                break
            self._known = definition
        self._known = definition
        counts = definition.state != "building"
        if damaged and past_of(live, built) is None:
            return definition, Past()
        return definition, Past(_record(live, keys[1]), _record(built, keys[2]) if counts else None)

    def _read(self, stored: bytes | None) -> Definition:
        if stored is None:
            raise Invalid(
                f"there is no search index {self.name!r}; nothing was changed: make it with "
                "create_search_index, or 'postroom pipeline run index'"
            )
        definition = definitions.read(stored)
        definitions.check_tokenizer(definition)
        return definition

    # --- searching

    async def search(
        self, words: str, *, limit: int = 10, at: int | None = None, consistent: bool = False
    ) -> list[Hit]:
        """Return the documents that have all of these words, the best first, at one timestamp.

        Each hit is right at that timestamp. A document that was changed just before it may be
        missing, since postings follow soon after.

        Args:
            words: ``wine cellar``, ``cell*``, ``"wine cellar"`` (:mod:`.query`).
            limit: how many at most.
            at: the timestamp to read at, instead of now.
            consistent: whether to wait first until all updates deferred so far are carried out;
                then no earlier commit is missing.

        Raises:
            Invalid: there is no such index, or it is being built, or a prefix fits too many
                documents.
            ValueError: there is no word in ``words``, or too many.
            SnapshotTooOld: ``at`` is collected already.
            TimeoutError: the deferred updates were not carried out in 30 s (``consistent``).
        """
        query = parse(words)
        _check_limit(limit)
        if consistent:
            await self._database.drain()
        async with self._raw.hold(at) as timestamp:
            stored = await self._raw.get(definition_key(self.name), at=timestamp)
            definition = self._read(stored)
            if definition.state == "building":
                raise Invalid(
                    f"the search index {self.name!r} is being built, and would find a part of what "
                    "there is: search when it is built ('postroom pipeline run index' goes on "
                    "if it was ended)"
                )
            return await Matching(self._raw, definition, timestamp).hits(query, limit)


def write(raw: Transaction, layout: Layout, key: bytes, past: Past, change: DocumentChange) -> None:
    """Add a change to a transaction: records at once, everything else deferred.

    Raises:
        ValueTooLarge: the record does not fit into a value.
        TransactionTooLarge: all of it together is too large.
    """
    if change.record is not None:
        raw.put(layout.live(key), packed(layout, key, change.record))
    elif past.live is not None:
        raw.delete(layout.live(key))
    if past.built is not None:
        raw.delete(layout.built_record(key))
    length = 0 if change.record is None else change.record.length
    for posting in change.deletes:
        raw.enqueue_update(Delete(layout.posting(posting)))
    for posting, frequency in change.puts.items():
        raw.enqueue_update(Put(layout.posting(posting), layout.pack_posting(frequency, length)))
    for counter, by in ((layout.documents, change.documents), (layout.words, change.words)):
        if by:
            raw.enqueue_update(Increment(counter, by))


def packed(layout: Layout, key: bytes, record: Record) -> bytes:
    """Return a record in its stored form.

    Raises:
        ValueTooLarge: it does not fit into a value.
    """
    stored = layout.pack_record(record)
    if len(stored) > RECORD_BYTES_MAX:
        raise ValueTooLarge(
            f"the words of the document {shorten(key)} take {len(stored)} bytes in a search index, "
            f"the limit is {RECORD_BYTES_MAX}; nothing was changed: divide it, or index fewer of "
            "its fields"
        )
    return stored


def _check_limit(given: Any) -> None:
    """Check that ``limit`` is a positive whole number."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"limit is a whole number, not {type(given).__name__}")
    if given < 1:
        raise ValueError(f"limit is at least 1, not {given}")


def _read_timestamp(raw: Transaction) -> int:
    """Return where the transaction reads; it has read the definition."""
    timestamp = raw.read_timestamp
    assert timestamp is not None
    return timestamp


def _record(stored: bytes | None, key: bytes) -> Record | None:
    return None if stored is None else unpack_record(stored, key)
