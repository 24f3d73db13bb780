"""The making, the building and the checking of indexes, and the calls of a database for them.

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

**A check** compares the actual data of an index with what it must be. Documents and records are
written by the same transactions, so they must agree at any timestamp. Postings follow later:
between a commit and its deferred updates they differ, and nothing is wrong. Thus a comparison at
some timestamp only finds *suspects*. A second look is at a timestamp at which the outbox can be
read as well: updates that wait there count as carried out. All differences that are left then are
damage, and only these, however much the documents change meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom import Delete, DeleteRange, Increment, Put, Timestamp, integer
from postroom.errors import Invalid, TransactionTooLarge
from postroom.layers.search import definition as definitions
from postroom.layers.search.changes import (
    Difference,
    Past,
    Suspect,
    compare,
    frequency_of,
    past_of,
    read_document,
)
from postroom.layers.search.definition import Definition
from postroom.layers.search.index import SearchIndex
from postroom.layers.search.layout import (
    DATA,
    DEFINITIONS,
    LAST_ID,
    Layout,
    Posting,
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

    async def build(self, definition: Definition) -> None:
        """Build the index in this process, by a transaction for each document.

        Documents that cannot be indexed are left out.

        Args:
            definition: the result of :meth:`begin`.
        """
        if definition.state == "building":
            async with aclosing(self._raw.scan_pages(*definition.span)) as pages:
                async for page in pages:
                    for key, _ in page.pairs:
                        with suppress(Invalid):
                            await self._database.run(self._index.refresh, key)
            await self.loaded(definition, 0, 0)
        await self.settle(definition)


def _check_same(known: Definition, wanted: Definition) -> None:
    if not known.same_documents(wanted):
        raise Invalid(
            f"the search index {known.name!r} is about prefix={known.prefix!r}, "
            f"fields={list(known.fields)}, format={known.format}; nothing was changed: ask for "
            "these, or build it anew for others"
        )


# --- the check ------------------------------------------------------------------------------------


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
                if past is not None:
                    wanted |= dict.fromkeys(map(self._layout.posting, past.postings(suspect.key)))
            keys = list(wanted)
            wanted = dict(zip(keys, await self._raw.get_many(keys, at=at), strict=True))
            await self._carry_out_all(wanted, at)
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
        if stored is None or definitions.read(stored).id != self._definition.id:
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
        async for request in self._raw.bulk.waiting_updates(at=at):
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

    async def _carry_out_all(self, stored: dict[bytes, bytes | None], at: Timestamp) -> None:
        """Change ``stored`` as the updates will that wait.

        A posting is put before it is deleted, though the updates may wait in different ranges.
        """
        deletions: list[Delete | DeleteRange] = []
        async for request in self._raw.bulk.waiting_updates(at=at):
            if isinstance(request, Put) and request.key in stored:
                stored[request.key] = request.value
            elif isinstance(request, DeleteRange) or (
                isinstance(request, Delete) and request.key in stored
            ):
                deletions.append(request)
        for request in deletions:
            _delete(stored, request)

    def _by_document(self, found: Mapping[bytes, bytes | None]) -> dict[bytes, dict[Posting, int]]:
        postings: dict[bytes, dict[Posting, int]] = {}
        for key, stored in found.items():
            if stored is not None:
                posting = self._layout.read_posting(key)
                postings.setdefault(posting.key, {})[posting] = frequency_of(stored, key)
        return postings


def _delete(stored: dict[bytes, bytes | None], request: Delete | DeleteRange) -> None:
    if isinstance(request, Delete):
        stored[request.key] = None
        return
    for key in stored:
        if key >= request.start and (request.end is None or key < request.end):
            stored[key] = None


# --- the calls of a database ----------------------------------------------------------------------


class SearchCalls:
    """The search calls of a database, in the asyncio form."""

    async def create_search_index(
        self: Any,
        name: str,
        prefix: bytes,
        *,
        fields: Sequence[str] = (),
        format: str | None = None,  # noqa: A002 - like the option of Spark
        anew: bool = False,
    ) -> SearchIndex:
        """Make a full-text index over the documents whose keys begin with ``prefix``.

        Existing documents are indexed now, by transactions; for many, the job ``index`` is quicker.
        If an index of that name exists for the same documents, it is only built if its build was
        not finished.

        Args:
            name: 128 bytes at most.
            prefix: the prefix of the keys.
            fields: the fields that are searched, ``a.b`` for one inside another; none: all text.
            format: the format of values: ``text``, ``json`` or ``msgpack``; ``None``: by the codec.
            anew: whether to build it again even if it exists.

        Returns:
            The index.

        Raises:
            TypeError, ValueError: an argument is not valid.
            Invalid: there is one of this name for other documents.
        """
        wanted = definitions.define(name, prefix, fields, format or format_of(self.codec))
        work = Building(self, wanted)
        definition = await work.begin(anew=anew)
        if definition.state != "ready":
            await work.build(definition)
        return SearchIndex(self, name)

    def search_index(self: Any, name: str) -> SearchIndex:
        """Return the search index of that name.

        The store is not asked: if there is no such index, the first call raises ``Invalid``.

        Args:
            name: its name.
        """
        return SearchIndex(self, name)

    async def search_indexes(self: Any) -> list[Definition]:
        """Return the definitions of all search indexes."""
        found = self.as_stored().scan(*DEFINITIONS)
        return [definitions.read(stored) async for _, stored in found]

    async def drop_search_index(self: Any, name: str) -> bool:
        """Drop a search index; its documents stay. Return whether there was one.

        Args:
            name: its name.
        """

        async def dropped(tx: Transaction) -> bool:
            key = definition_key(name)
            stored = await tx.get(key)
            if stored is None:
                return False
            tx.delete(key)
            tx.enqueue_update(DeleteRange(*definitions.read(stored).layout.span))
            return True

        gone: bool = await self.as_stored().run(dropped)
        return gone

    async def sweep_search_indexes(self: Any) -> int:
        """Delete data of indexes that no longer exist; return of how many.

        Late tasks of a build may have left such data.
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

        number: int = await self.as_stored().run(swept)
        return number


def format_of(codec: Any) -> str:
    """Return the format of the values that a codec packs.

    Raises:
        ValueError: it is one of the application's own.
    """
    if not codec.packs:
        return "text"
    packed = codec.encode([1, "a"])
    formats = {b'[1,"a"]': "json", b"\x92\x01\xa1a": "msgpack"}
    if packed not in formats:
        raise ValueError(
            "a search index must read documents where this codec is not known: give format= json, "
            "msgpack or text, as the stored values are"
        )
    return formats[packed]
