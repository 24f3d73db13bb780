"""The synchronous forms of :mod:`.index`, :mod:`.building` and :mod:`.of_database`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from postroom.client.search import building as asynchronous_building
from postroom.client.search import checking as asynchronous_checking
from postroom.client.search import index as asynchronous
from postroom.client.search.building import Told
from postroom.client.search.checking import Difference, Suspect
from postroom.client.search.definition import Definition
from postroom.client.search.matching import Hit
from postroom.client.search.of_database import SearchOfDatabase as AsyncSearchOfDatabase
from postroom.client.sender import BlockingSender
from postroom.client.sync_transaction import Transaction
from postroom.kv.clock import Timestamp


class SearchIndex:
    """A full-text index over the documents with a prefix. Made by :meth:`Database.search_index`."""

    def __init__(self, sender: BlockingSender, core: asynchronous.SearchIndex) -> None:
        self._run = sender.run
        self._core = core

    @property
    def name(self) -> str:
        """Of the index."""
        return self._core.name

    def definition(self) -> Definition:
        """What the index is, and how far it is built.

        Raises:
            Invalid: there is no index of this name.
        """
        return self._run(self._core.definition())

    def put(self, tx: Transaction, key: bytes, document: Any) -> None:
        """Sets ``key`` to ``document`` when the transaction commits, and has the index follow.

        Args:
            tx: a transaction of the same database.
            key: of the document.
            document: its value, as ``tx.put`` takes it.

        Raises:
            Invalid: there is no such index.
            ValueError: the key does not begin with the prefix of the index.
            KeyTooLarge, ValueTooLarge: the key is too long for an index, or the document has too
                many different words.
            WrongType: the document is not of the format of the index.
            TransactionTooLarge: with what the index needs, it has gathered more than 16 MiB.
        """
        self._run(self._core.put(tx._core, key, document))

    def delete(self, tx: Transaction, key: bytes) -> None:
        """Removes the document, if it is there, when the transaction commits; and what the index
        has of it.

        Raises:
            As :meth:`put`.
        """
        self._run(self._core.delete(tx._core, key))

    def refresh(self, tx: Transaction, key: bytes) -> None:
        """Has the index follow what the document is now: for one that was changed without it.

        Raises:
            As :meth:`put`.
        """
        self._run(self._core.refresh(tx._core, key))

    def repair(self, tx: Transaction, key: bytes, strays: Iterable[bytes] = ()) -> None:
        """Writes anew what the index has of a document, whatever of it is damaged.

        Args:
            tx: a transaction of the same database.
            key: of the document; it need not be there.
            strays: keys of postings that no record names, which go.
        """
        self._run(self._core.repair(tx._core, key, strays))

    def search(
        self, words: str, *, limit: int = 10, at: int | None = None, consistent: bool = False
    ) -> list[Hit]:
        """The documents that have all of these words, the best first, as of one timestamp.

        Each hit is right at that timestamp. A document that was changed just before it may be
        missing, since postings follow soon after.

        Args:
            words: ``wine cellar``, ``cell*``, ``"wine cellar"``.
            limit: how many at most.
            at: as of this timestamp instead of now.
            consistent: wait first until all that was deferred so far is carried out; then nothing
                that was committed before is missing.

        Raises:
            Invalid: there is no such index, or it is being built, or a prefix fits too many
                documents.
            ValueError: there is no word in ``words``, or too many.
            SnapshotTooOld: ``at`` is collected already.
            TimeoutError: what was deferred was not carried out in 30 s (``consistent``).
        """
        return self._run(self._core.search(words, limit=limit, at=at, consistent=consistent))


class Building:
    """Makes an index, and builds it: see :mod:`.building`."""

    def __init__(self, sender: BlockingSender, core: asynchronous_building.Building) -> None:
        self._run = sender.run
        self._core = core

    def begin(self, *, anew: bool = False) -> Definition:
        """The definition: made, begun anew, or as it is if there is nothing to be built."""
        return self._run(self._core.begin(anew=anew))

    def loaded(self, built: Definition, documents: int, words: int) -> None:
        """The build has written everything."""
        self._run(self._core.loaded(built, documents, words))

    def settle(self, built: Definition, told: Told = lambda _: None) -> int:
        """Puts right the documents that were changed during the build; then it is ready."""
        return self._run(self._core.settle(built, told))


class Checking:
    """Looks at suspects once more: see :mod:`.checking`."""

    def __init__(self, sender: BlockingSender, core: asynchronous_checking.Checking) -> None:
        self._run = sender.run
        self._core = core

    def confirm(self, suspects: Iterable[Suspect]) -> list[Difference]:
        """What differs of them indeed.

        Raises:
            SnapshotTooOld: another node has become the leader meanwhile; call again.
        """
        return self._run(self._core.confirm(suspects))

    def sums(self, at: Timestamp) -> tuple[int, int]:
        """How many documents and words the index counts, with what waits to be carried out."""
        return self._run(self._core.sums(at))


class SearchOfDatabase:
    """What a database offers about search indexes."""

    def __init__(self, sender: BlockingSender, core: AsyncSearchOfDatabase) -> None:
        self._search_sender = sender
        self._with_search = core

    def create_search_index(
        self,
        name: str,
        prefix: bytes,
        *,
        fields: Sequence[str] = (),
        format: str | None = None,  # noqa: A002 - as the option of Spark
        anew: bool = False,
    ) -> SearchIndex:
        """Makes a full-text index over the documents whose keys begin with ``prefix``.

        If there are such documents they are indexed now, by transactions; of many, the job
        ``index`` does so quicker. One of that name for the same documents is fine: if it was not
        built to its end, it is built.

        Args:
            name: 128 bytes at most.
            prefix: of the keys.
            fields: the fields that are searched, ``a.b`` for one inside another; none: all text.
            format: of values: ``text``, ``json`` or ``msgpack``; ``None``: by the codec.
            anew: built anew, even if it is there.

        Raises:
            TypeError, ValueError: an argument is none that can be.
            Invalid: there is one of this name for other documents.
        """
        core = self._search_sender.run(
            self._with_search.create_search_index(
                name, prefix, fields=fields, format=format, anew=anew
            )
        )
        return SearchIndex(self._search_sender, core)

    def search_index(self, name: str) -> SearchIndex:
        """The search index of that name. Nobody is asked: if there is none, the first call says
        so.
        """
        return SearchIndex(self._search_sender, self._with_search.search_index(name))

    def search_indexes(self) -> list[Definition]:
        """All search indexes."""
        return self._search_sender.run(self._with_search.search_indexes())

    def drop_search_index(self, name: str) -> bool:
        """Drops a search index; its documents stay. Whether there was one."""
        return self._search_sender.run(self._with_search.drop_search_index(name))

    def search_building(self, wanted: Definition) -> Building:
        """Makes and builds an index step by step: for the job ``index``."""
        core = asynchronous_building.Building(self._with_search, wanted)  # type: ignore[arg-type]
        return Building(self._search_sender, core)

    def search_checking(self, definition: Definition) -> Checking:
        """Looks at what seems to be wrong with an index: for the job ``index``."""
        raw = self._with_search.as_stored()  # type: ignore[attr-defined]
        return Checking(self._search_sender, asynchronous_checking.Checking(raw, definition))

    def sweep_search_indexes(self) -> int:
        """Deletes data of indexes that are not there any more; of how many."""
        return self._search_sender.run(self._with_search.sweep_search_indexes())


__all__ = ["Building", "Checking", "SearchIndex", "SearchOfDatabase"]
