"""The synchronous forms of :mod:`.index`, :mod:`.building` and :mod:`.of_database`."""

from __future__ import annotations

from postroom.client.blocking import blocking, blocking_in, owning
from postroom.client.search import building as asynchronous_building
from postroom.client.search import checking as asynchronous_checking
from postroom.client.search import index as asynchronous
from postroom.client.search.definition import Definition
from postroom.client.search.of_database import SearchOfDatabase as AsyncSearchOfDatabase
from postroom.client.sender import BlockingSender


class SearchIndex:
    """A full-text index over the documents with a prefix, made by :meth:`Database.search_index`.

    Examples:
        >>> index = db.create_search_index("notes", b"note/")
        >>> with db.begin() as tx:
        ...     index.put(tx, b"note/1", b"red wine in the cellar")
        >>> [hit.key for hit in index.search("wine cell*", consistent=True)]
        [b'note/1']
    """

    def __init__(self, sender: BlockingSender, core: asynchronous.SearchIndex) -> None:
        self._blocking = sender
        self._core = core

    @property
    def name(self) -> str:
        """Return the name of the index."""
        return self._core.name

    definition = blocking(asynchronous.SearchIndex.definition)
    put = blocking_in(asynchronous.SearchIndex.put)
    delete = blocking_in(asynchronous.SearchIndex.delete)
    refresh = blocking_in(asynchronous.SearchIndex.refresh)
    repair = blocking_in(asynchronous.SearchIndex.repair)
    search = blocking(asynchronous.SearchIndex.search)


class Building:
    """The making and the build of an index: see :mod:`.building`."""

    def __init__(self, sender: BlockingSender, core: asynchronous_building.Building) -> None:
        self._blocking = sender
        self._core = core

    begin = blocking(asynchronous_building.Building.begin)
    loaded = blocking(asynchronous_building.Building.loaded)
    settle = blocking(asynchronous_building.Building.settle)


class Checking:
    """A second look at suspects: see :mod:`.checking`."""

    def __init__(self, sender: BlockingSender, core: asynchronous_checking.Checking) -> None:
        self._blocking = sender
        self._core = core

    confirm = blocking(asynchronous_checking.Checking.confirm)
    sums = blocking(asynchronous_checking.Checking.sums)


class SearchOfDatabase:
    """The search calls of a database."""

    _blocking: BlockingSender
    _core: AsyncSearchOfDatabase

    create_search_index = owning(AsyncSearchOfDatabase.create_search_index, SearchIndex)

    def search_index(self, name: str) -> SearchIndex:
        """Return the search index of that name.

        The store is not asked: if there is no such index, the first call raises ``Invalid``.

        Args:
            name: its name.
        """
        return SearchIndex(self._blocking, self._core.search_index(name))

    search_indexes = blocking(AsyncSearchOfDatabase.search_indexes)
    drop_search_index = blocking(AsyncSearchOfDatabase.drop_search_index)

    def search_building(self, wanted: Definition) -> Building:
        """Return the object that makes and builds an index step by step: for the job ``index``.

        For layers on top.

        Args:
            wanted: its definition.
        """
        core = asynchronous_building.Building(self._core, wanted)  # type: ignore[arg-type]
        return Building(self._blocking, core)

    def search_checking(self, definition: Definition) -> Checking:
        """Return the object that checks an index: for the job ``index``.

        For layers on top.

        Args:
            definition: its definition.
        """
        raw = self._core.as_stored()  # type: ignore[attr-defined]
        return Checking(self._blocking, asynchronous_checking.Checking(raw, definition))

    sweep_search_indexes = blocking(AsyncSearchOfDatabase.sweep_search_indexes)


__all__ = ["Building", "Checking", "SearchIndex", "SearchOfDatabase"]
