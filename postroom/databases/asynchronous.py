"""The database with the calls of the layers, in the asyncio form."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from postroom.backup.calls import BackupCalls
from postroom.client import database as client
from postroom.client.remote.connect import connect_async
from postroom.client.remote.connect import connect_on_behalf as connect_core_on_behalf
from postroom.layers.search.maintenance import SearchCalls

P = ParamSpec("P")


class Database(SearchCalls, BackupCalls, client.CoreDatabase):
    """A store, embedded or reached over the network.

    ``open`` and ``connect`` make it. It belongs to one event loop. It is an asynchronous context
    manager, which closes it at the end of the block.
    """


def layered(
    make: Callable[P, Awaitable[client.CoreDatabase]],
) -> Callable[P, Awaitable[Database]]:
    """Return the form of ``make`` whose database has the calls of the layers."""

    @functools.wraps(make)
    async def made(*args: P.args, **kwargs: P.kwargs) -> Database:
        return (await make(*args, **kwargs)).as_a(Database)

    return made


connect = layered(connect_async)
connect_on_behalf = layered(connect_core_on_behalf)
