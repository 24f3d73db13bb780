"""The synchronous forms of :mod:`.index` and :mod:`.maintenance`.

A synchronous object has ``_core``, the object in the asyncio form, and ``_database``, the database
whose :meth:`wait` runs its coroutines. A method is made of the coroutine method of the asyncio
form, and the calling thread runs that to its end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from postroom.layers.search import index as asynchronous
from postroom.layers.search import maintenance
from postroom.layers.search.definition import Definition

if TYPE_CHECKING:
    from postroom import Database, Transaction, aio

P = ParamSpec("P")
T = TypeVar("T")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the form of a coroutine method that the calling thread runs to its end."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._database.wait(getattr(self._core, name)(*args, **kwargs))
        return result

    return call


def blocking_in(
    method: Callable[Concatenate[Any, aio.Transaction, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, Transaction, P], T]:
    """Return the blocking form of a method whose first argument is a synchronous transaction."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, tx: Transaction, *args: P.args, **kwargs: P.kwargs) -> T:
        work = getattr(self._core, name)(tx.core, *args, **kwargs)
        result: T = self._database.wait(work)
        return result

    return call  # type: ignore[return-value]  # checkers know ``tx`` by its position alone


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


def indexing(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, asynchronous.SearchIndex]],
) -> Callable[Concatenate[Any, P], SearchIndex]:
    """Return the blocking form of a method that makes an index; so is the index."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> SearchIndex:
        made = self.wait(method(self.core, *args, **kwargs))
        return SearchIndex(self, made.name)

    return call


class Building:
    """The making and the build of an index: see :mod:`.maintenance`."""

    def __init__(self, database: Database, wanted: Definition) -> None:
        self._database = database
        self._core = maintenance.Building(database.core, wanted)

    begin = blocking(maintenance.Building.begin)
    loaded = blocking(maintenance.Building.loaded)
    settle = blocking(maintenance.Building.settle)


class Checking:
    """A second look at suspects: see :mod:`.maintenance`."""

    def __init__(self, database: Database, definition: Definition) -> None:
        self._database = database
        raw = database.core.as_stored()
        self._core = maintenance.Checking(raw, definition)

    confirm = blocking(maintenance.Checking.confirm)
    sums = blocking(maintenance.Checking.sums)


class SearchCalls:
    """The search calls of a database."""

    _core: maintenance.SearchCalls

    @property
    def _database(self) -> Any:
        """Return the database itself, which runs the coroutines."""
        return self

    create_search_index = indexing(maintenance.SearchCalls.create_search_index)

    def search_index(self: Any, name: str) -> SearchIndex:
        """Return the search index of that name.

        The store is not asked: if there is no such index, the first call raises ``Invalid``.

        Args:
            name: its name.
        """
        return SearchIndex(self, name)

    search_indexes = blocking(maintenance.SearchCalls.search_indexes)
    drop_search_index = blocking(maintenance.SearchCalls.drop_search_index)
    sweep_search_indexes = blocking(maintenance.SearchCalls.sweep_search_indexes)
