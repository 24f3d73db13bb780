"""The rights of visitors: the role of their token, and what the store grants to its name.

::

    token ─▶ role, name ──┐
                          ├─▶ rights ─▶ the store as this visitor may use it
    grants of the store ──┘   read again when they are older than a second

Rights are those of a node: grants add to a role, and the role ``none`` has its grants alone. If
the grants cannot be read, no visitor with a token is let in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from postroom.errors import AccessDenied
from postroom.web.limits import GRANTS_SECONDS
from postroom.web.store import NotKnown, OpenStore
from postroom.web.visitors import Visitor

MAY_NOT_READ: Final = (
    "these pages may not read the grants of the store, so that no token is let in: start them with "
    "a token, or a certificate, of an administrator"
)


class KnownRights:
    """The rights of all visitors, as they were within the last second.

    Args:
        store: the store.
        monotonic: returns the time in seconds.
    """

    def __init__(self, store: OpenStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._grants: dict[str, list[Any]] = {}
        self._made: dict[tuple[str, str], Visitor] = {}
        self._read_at: float | None = None

    async def given(self, visitor: Visitor) -> Visitor:
        """Return a visitor that has a token, with its rights.

        Raises:
            NotKnown: the grants cannot be read.
        """
        now = self._monotonic()
        if self._read_at is None or now - self._read_at >= GRANTS_SECONDS:
            await self._read()
            self._read_at = now
        key = visitor.role, visitor.name
        made = self._made.get(key)
        if made is None:
            grants = self._grants.get(visitor.name, []) if visitor.name else []
            rights = self._store.rights(visitor.role, grants)
            made = replace(visitor, rights=rights, grants=tuple(grants))
            self._made[key] = made
        return replace(visitor, rights=made.rights, grants=made.grants)

    async def _read(self) -> None:
        found: dict[str, list[Any]] = {}
        try:
            every = await self._store.read(lambda db: db.access.grants())
        except AccessDenied as denied:
            raise NotKnown(MAY_NOT_READ) from denied
        for each in every:
            found.setdefault(each.name, []).append(each)
        self._grants = found
        self._made = {}
