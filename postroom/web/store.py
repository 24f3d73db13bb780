"""The store as the pages read it: within a time, and a few reads at once.

A store in trouble does not answer, or answers late. A page must not wait for it, and many visitors
must not make it worse. A read that takes too long is ended, and its part of the page says why.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import postroom
import postroom.aio
from postroom.errors import AccessDenied, DatabaseClosed, Error, Invalid
from postroom.web.limits import ACTION_SECONDS_MAX, READ_SECONDS_MAX, READS_AT_ONCE_MAX

T = TypeVar("T")
Work = Callable[[postroom.aio.Database], Awaitable[T]]

LATE = f"the store did not answer within {READ_SECONDS_MAX:g} s"


class NotKnown(Exception):
    """An error that tells why a read had no result, for people."""


class OpenStore:
    """A store that somebody else has opened, and closes.

    Args:
        db: the store, in either form.
    """

    def __init__(self, db: postroom.Database | postroom.aio.Database) -> None:
        self._given = db
        self._free = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._threads = ThreadPoolExecutor(READS_AT_ONCE_MAX, "postroom web")
        self._rights: Any = None

    def as_client(self, rights: Any) -> Self:
        """Return the same store for a visitor with some rights; ``None``: with all."""
        limited = copy.copy(self)
        limited._rights = rights
        return limited

    def rights(self, role: str, grants: Iterable[Any]) -> Any:
        """Return the rights of a client with a role and some grants."""
        return self._open().access.rights(role, grants)

    def _open(self) -> postroom.aio.Database:
        if isinstance(self._given, postroom.aio.Database):
            return self._given
        return self._given.on_loop(self._threads)  # type: ignore[return-value]

    def _db(self) -> postroom.aio.Database:
        db = self._open()
        return db if self._rights is None else db.as_client(self._rights)

    @property
    def codec(self) -> Any:
        """Return the codec of the store, which unpacks payloads."""
        given: Any = self._given
        return given.codec if isinstance(given, postroom.aio.Database) else given.core.codec

    async def read(self, work: Work[T]) -> T:
        """Return what ``work`` reads of the store, as it is stored: no codec unpacks it.

        Raises:
            NotKnown: the store is in trouble, or did not answer in time.
            Invalid: there is no such thing to read.
            AccessDenied: the visitor, or this process, has no right to it.
        """
        try:
            async with asyncio.timeout(READ_SECONDS_MAX), self._free:
                return await work(self._db().as_stored())
        except TimeoutError:
            raise NotKnown(LATE) from None
        except Error as error:
            if isinstance(error, Invalid | AccessDenied) and not isinstance(error, DatabaseClosed):
                raise  # the request is wrong, not the store
            raise NotKnown(str(error)) from error

    async def known(self, work: Work[dict[str, Any]]) -> dict[str, Any]:
        """Return a part of a page; a part that cannot be read says why, as ``unknown``."""
        try:
            return await self.read(work)
        except (NotKnown, Invalid, AccessDenied) as error:
            return {"unknown": str(error)}

    async def act(self, work: Work[T]) -> T:
        """Change the store; errors are the store's own.

        Raises:
            NotKnown: it is not known yet whether the change was made.
            Error: see the call.
        """
        try:
            async with asyncio.timeout(ACTION_SECONDS_MAX):
                return await work(self._db())
        except TimeoutError:
            raise NotKnown(
                f"the store did not answer within {ACTION_SECONDS_MAX:g} s: the change may have "
                "been made; look again"
            ) from None
