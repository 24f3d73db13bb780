"""The store as another client may use it: each request is checked before it is sent.

::

    visitor ─▶ process ── as_client(rights) ──▶ LimitedSender ─┬─ lacks a right ──▶ AccessDenied
                                                               └─▶ the sender of the process

A process that acts for several clients, as the pages do, reaches the store as one client, which may
do more than they. The check is that of a node (:mod:`postroom.ranges.rights`): it looks at the
request alone, so that a refusal is the same whatever is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from postroom.client.sender import Sender
from postroom.client.values import Status
from postroom.ranges.access import lacking
from postroom.ranges.contract import Request
from postroom.ranges.requests import Value
from postroom.ranges.rights import Rights


class LimitedSender:
    """A ``Sender`` that sends only what a client has the right to.

    Args:
        sender: the sender of this process.
        rights: the rights of the client.
    """

    def __init__(self, sender: Sender, rights: Rights) -> None:
        self._sender = sender
        self._rights = rights
        self.random = sender.random
        self.next_id = sender.next_id
        self.patience_seconds = sender.patience_seconds
        self.reading = sender.reading
        self.monotonic = sender.monotonic
        self.ranges, self.range_of = sender.ranges, sender.range_of
        self.range_id = sender.range_id
        self.span_of = sender.span_of
        self.sleep = sender.sleep
        self.now = sender.now

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        """Return an awaitable of the answer to ``request``.

        Raises:
            AccessDenied: the client lacks a right; nothing was sent.
        """
        self.check(request)
        return self._sender.send(request, timeout_seconds)

    def check(self, request: Request) -> None:
        """Check that the client has all rights that a request needs.

        Raises:
            AccessDenied: it lacks one.
        """
        missing = self._rights.lacks(request)
        if missing is not None:
            raise lacking(missing)

    def try_get(self, key: bytes) -> Value | None:
        """Return ``None``: a ``Get`` is sent, and checked."""
        del key
        return None


def limited_status(
    sender: LimitedSender,
    full: Sender,
    request: Request,
    status: Callable[[Sender], Awaitable[Status]],
) -> Callable[[Sender], Awaitable[Status]]:
    """Return the reader of the status for a client that needs the rights of ``request`` for it.

    Args:
        sender: the sender of the client, which checks the right.
        full: the sender of this process, which reads it.
        request: the request that the client must have the right to.
        status: the reader for this process.
    """

    async def read(_: Sender) -> Status:
        sender.check(request)
        return await status(full)

    return read
