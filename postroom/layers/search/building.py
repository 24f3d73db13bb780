"""The making of an index: its definition, the changes of its state, and its repairs.

A bulk build goes through these steps (:mod:`.definition` draws the states)::

    begin    the definition says building: from now on transactions write live records
             ── a timestamp T is held ──
    load     records and postings of all documents at T, into an empty span beside
    loaded   settling: what the build has counted is added to the sums
    settle   documents that have a live record as well: what the build wrote of them goes
             ── ready ──

T is after ``begin``. Changes before T are in the documents at T; documents that change after T have
a live record. A build that was ended before ``loaded`` begins again with another id, and the data
of the old one is deleted. A build that was ended after it goes on with ``settle``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from postroom import DeleteRange
from postroom.errors import Invalid, TransactionTooLarge
from postroom.layers.search import definition as definitions
from postroom.layers.search.definition import Definition
from postroom.layers.search.index import SearchIndex
from postroom.layers.search.layout import (
    DATA,
    DEFINITIONS,
    LAST_ID,
    Layout,
    definition_key,
    id_of,
)

if TYPE_CHECKING:
    from postroom.aio import Database, Transaction

_AT_ONCE: Final = 16
"""The documents in one transaction: a document of many words is large by itself."""

Told = Callable[[int], None]
"""A function that is told how many documents are done."""


class Building:
    """The making and the build of an index.

    Args:
        database: the database.
        wanted: the index; its id and state do not matter.
    """

    def __init__(self, database: Database, wanted: Definition) -> None:
        self._database = database
        self._raw = database.as_stored()
        self._wanted = wanted
        self._index = SearchIndex(database, wanted.name)

    async def begin(self, *, anew: bool = False) -> Definition:
        """Make the definition, or begin it again; return it, or the present one if it is built.

        Args:
            anew: whether to begin again even if it is built.

        Raises:
            Invalid: there is one of this name for other documents. Nothing was changed.
        """
        definition: Definition = await self._raw.run(self._begin, anew)
        return definition

    async def _begin(self, tx: Transaction, anew: bool) -> Definition:
        wanted = self._wanted
        stored = await tx.get(wanted.key)
        if stored is not None:
            known = definitions.read(stored)
            if not anew:
                _check_same(known, wanted)
                definitions.check_tokenizer(known)
                if known.state != "building":
                    return known
            tx.enqueue_update(DeleteRange(*known.layout.span))
        number = await tx.increment(LAST_ID)
        documents = tx.scan(*wanted.span, limit=1)
        is_empty = [key async for key, _ in documents] == []
        state: definitions.State = "ready" if is_empty else "building"
        made = msgspec.structs.replace(wanted, id=str(number), state=state)
        tx.put(made.key, made.packed())
        return made

    async def loaded(self, built: Definition, documents: int, words: int) -> None:
        """Note that the build has written everything.

        Args:
            built: the definition that it has built.
            documents, words: how many it has indexed.

        Raises:
            Invalid: the index was dropped, or another build has replaced this one.
        """
        await self._raw.run(self._loaded, built, documents, words)

    async def _loaded(self, tx: Transaction, built: Definition, documents: int, words: int) -> None:
        await self._change_state(tx, built, "settling")
        await tx.increment(built.layout.documents, documents)
        await tx.increment(built.layout.words, words)

    async def settle(self, built: Definition, told: Told = lambda _: None) -> int:
        """Correct the documents that were changed during the build; then the index is ready.

        Returns:
            How many documents needed a correction.

        Raises:
            Invalid: see :meth:`loaded`.
        """
        settled = done = 0
        async for keys in self._live(built.layout):
            settled += await self._settle_all(keys)
            done += len(keys)
            told(done)
        await self._raw.run(self._change_state, built, "ready")
        return settled

    async def _settle_all(self, keys: list[bytes]) -> int:
        """Settle documents in as few transactions as possible: a long document may fill one."""
        try:
            settled: int = await self._database.run(self._settle, keys)
            return settled
        except TransactionTooLarge:
            if len(keys) == 1:
                raise
        half = len(keys) // 2
        return await self._settle_all(keys[:half]) + await self._settle_all(keys[half:])

    async def _settle(self, tx: Transaction, keys: list[bytes]) -> int:
        return sum([await self._index.settle(tx, key) for key in keys])

    async def _live(self, layout: Layout) -> AsyncIterator[list[bytes]]:
        """Return the documents that have live records now."""
        async with aclosing(self._raw.scan_pages(*layout.live_records)) as pages:
            async for page in pages:
                keys = [layout.document_of(key) for key, _ in page.pairs]
                for first in range(0, len(keys), _AT_ONCE):
                    yield keys[first : first + _AT_ONCE]

    async def _change_state(
        self, tx: Transaction, built: Definition, state: definitions.State
    ) -> None:
        stored = await tx.get(built.key)
        known = None if stored is None else definitions.read(stored)
        if known is None or known.id != built.id:
            raise Invalid(
                f"the search index {built.name!r} was dropped, or another build has taken the "
                "place of this one, which ends"
            )
        if known.state != "ready":
            tx.put(built.key, msgspec.structs.replace(known, state=state).packed())

    # --- without Spark

    async def build(self, definition: Definition, told: Told = lambda _: None) -> int:
        """Build the index in this process, by a transaction for each document.

        Args:
            definition: the result of :meth:`begin`.
            told: called with how many documents are done.

        Returns:
            How many documents cannot be indexed.
        """
        refused = done = 0
        if definition.state == "building":
            async with aclosing(self._raw.scan_pages(*definition.span)) as pages:
                async for page in pages:
                    for key, _ in page.pairs:
                        refused += await self._refresh(key)
                    done += len(page.pairs)
                    told(done)
            await self.loaded(definition, 0, 0)
        await self.settle(definition)
        return refused

    async def _refresh(self, key: bytes) -> int:
        """Index a document; return 1 if it cannot be indexed, else 0."""
        try:
            await self._database.run(self._index.refresh, key)
        except Invalid:
            return 1
        return 0


async def drop(raw: Database, name: str) -> bool:
    """Drop an index; return whether there was one.

    Args:
        raw: the database, values as they are stored.
        name: the name of the index.
    """

    async def dropped(tx: Transaction) -> bool:
        key = definition_key(name)
        stored = await tx.get(key)
        if stored is None:
            return False
        tx.delete(key)
        tx.enqueue_update(DeleteRange(*definitions.read(stored).layout.span))
        return True

    gone: bool = await raw.run(dropped)
    return gone


async def sweep(raw: Database) -> int:
    """Delete data of indexes that no longer exist, as left by late tasks of a build.

    Returns:
        How many indexes had such data.
    """

    async def swept(tx: Transaction) -> int:
        known = {definitions.read(stored).id async for _, stored in tx.scan(*DEFINITIONS)}
        count = 0
        start, end = DATA
        while found := [key async for key, _ in tx.scan(start, end, limit=1)]:
            id_ = id_of(found[0])
            span = Layout(id_, "msgpack").span
            if id_ not in known:
                count += 1
                tx.enqueue_update(DeleteRange(*span))
            assert span[1] is not None
            start = span[1]
        return count

    number: int = await raw.run(swept)
    return number


def _check_same(known: Definition, wanted: Definition) -> None:
    if not known.same_documents(wanted):
        raise Invalid(
            f"the search index {known.name!r} is about prefix={known.prefix!r}, "
            f"fields={list(known.fields)}, format={known.format}; nothing was changed: ask for "
            "these, or build it anew for others"
        )


__all__ = ["Building", "drop", "sweep"]
