"""The database with the calls of the layers, in the synchronous form."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from postroom.backup import calls
from postroom.client import sync as client
from postroom.client.blocking import blocking
from postroom.client.remote.connect import connect as connect_client
from postroom.databases import asynchronous
from postroom.layers.search.sync_index import SearchCalls

P = ParamSpec("P")


class Database(SearchCalls, client.CoreDatabase):
    """A store, embedded or reached over the network.

    ``open`` and ``connect`` make it. It may be used from many threads at once, and gains from it:
    their commits share a sync. It is a context manager, which closes it at the end of the block.

    Examples:
        >>> db.put(b"user/ada", b"active")
        >>> db.get(b"user/ada")
        b'active'
        >>> with db.begin() as tx:
        ...     tx.put(b"order/17", b"paid")
        ...     tx.enqueue_message(b"warehouse", b"ship order 17")
        >>> [message.value for message in db.peek(b"warehouse")]
        [b'ship order 17']
    """

    _core: asynchronous.Database

    @property
    def core(self) -> asynchronous.Database:
        """Return the asyncio form of this database, whose coroutines :meth:`wait` runs.

        For layers on top.
        """
        return self._core

    backup = blocking(calls.BackupCalls.backup)


def layered(make: Callable[P, client.CoreDatabase]) -> Callable[P, Database]:
    """Return the form of ``make`` whose database has the calls of the layers."""

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Database:
        found = make(*args, **kwargs)
        return Database(found.sender, found.core.as_a(asynchronous.Database))

    return made


connect = layered(connect_client)
