"""The synchronous forms of :mod:`.index`, :mod:`.building`, :mod:`.checking` and :mod:`.calls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from postroom.layers.search import building as asynchronous_building
from postroom.layers.search import calls as asynchronous_calls
from postroom.layers.search import checking as asynchronous_checking
from postroom.layers.search import index as asynchronous
from postroom.layers.search.definition import Definition
from postroom.layers.search.sync_forms import blocking, blocking_in

if TYPE_CHECKING:
    from postroom import Database


class SearchIndex:
    """A full-text index over the documents with a prefix, made by :meth:`Database.search_index`.

    Examples:
        >>> index = db.create_search_index("notes", b"note/")
        >>> with db.begin() as tx:
        ...     index.put(tx, b"note/1", b"red wine in the cellar")
        >>> [hit.key for hit in index.search("wine cell*", consistent=True)]
        [b'note/1']
    """

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._core = asynchronous.SearchIndex(database.core, name)

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

    def __init__(self, database: Database, wanted: Definition) -> None:
        self._database = database
        self._core = asynchronous_building.Building(database.core, wanted)

    begin = blocking(asynchronous_building.Building.begin)
    loaded = blocking(asynchronous_building.Building.loaded)
    settle = blocking(asynchronous_building.Building.settle)


class Checking:
    """A second look at suspects: see :mod:`.checking`."""

    def __init__(self, database: Database, definition: Definition) -> None:
        self._database = database
        raw = database.core.as_stored()
        self._core = asynchronous_checking.Checking(raw, definition)

    confirm = blocking(asynchronous_checking.Checking.confirm)
    sums = blocking(asynchronous_checking.Checking.sums)


class SearchCalls:
    """The search calls of a database."""

    _core: asynchronous_calls.SearchCalls

    @property
    def _database(self) -> Any:
        """Return the database itself, which runs the coroutines."""
        return self

    def create_search_index(
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
        made = self._core.create_search_index(name, prefix, fields=fields, format=format, anew=anew)
        self.wait(made)
        return SearchIndex(self, name)

    def search_index(self: Any, name: str) -> SearchIndex:
        """Return the search index of that name.

        The store is not asked: if there is no such index, the first call raises ``Invalid``.

        Args:
            name: its name.
        """
        return SearchIndex(self, name)

    search_indexes = blocking(asynchronous_calls.SearchCalls.search_indexes)
    drop_search_index = blocking(asynchronous_calls.SearchCalls.drop_search_index)
    sweep_search_indexes = blocking(asynchronous_calls.SearchCalls.sweep_search_indexes)


__all__ = ["Building", "Checking", "SearchCalls", "SearchIndex"]
