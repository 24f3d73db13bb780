"""The writes and messages that a transaction has gathered for its commit.

Writes are a dictionary: the last one to a key counts. Messages and deferred updates are a list, in
the order of their calls. All of it together has a limit in bytes. Each call that adds something
checks it: a transaction learns of an excess at the call that exceeds the limit.

``WriteBuffer`` has the calls of a transaction that gather writes, without asking the store, in both
forms. They check their arguments and add them to the ``Buffer``. They are the most frequent calls.
The synchronous form of a transaction therefore has them itself, not by way of the asyncio form, and
valid arguments pass without a further call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from postroom.client import arguments
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.pages import Page
from postroom.client.sender import Sender
from postroom.errors import TransactionTooLarge, shorten
from postroom.kv.keys import head_key
from postroom.limits import KEY_BYTES_MAX, PEEKED_MESSAGES_MAX, TRANSACTION_BYTES_MAX
from postroom.messaging.requests import EnqueueMessage, EnqueueUpdate
from postroom.ranges.evaluation import WRITE_BYTES
from postroom.ranges.requests import Accounting, Delete, Increment, Put, UpdateRequest

_OVERHEAD_BYTES: Final = 32

NO_LIST: Final[Any] = ()
NO_SET: Final[Any] = frozenset()
"""Placeholders for containers that are still empty.

Python's garbage collector runs when the containers that were made outnumber those that were freed
by some threshold. With six empty lists in each of 64 concurrent transactions, it runs all the time.
"""


class Buffer(msgspec.Struct, eq=False, gc=False):
    """The writes and messages of one transaction.

    It is a struct, since a struct is made in few steps. The garbage collector need not see it,
    because nothing in it leads back to it.

    Attributes:
        writes: the new value of each key; ``None``: it is deleted.
        integers: the keys that are set to integers.
        sends: the messages and updates, in the order of their calls.
    """

    writes: dict[bytes, bytes | None] = {}
    integers: set[bytes] = NO_SET
    sends: list[EnqueueMessage | EnqueueUpdate] = NO_LIST
    _bytes: int = 0

    def write(self, key: bytes, packed: bytes | None) -> None:
        """Set ``key``; ``None`` deletes it.

        Raises:
            TransactionTooLarge: there are too many bytes.
        """
        self._bytes += len(key) + (len(packed) if packed else 0) + _OVERHEAD_BYTES
        if self._bytes > TRANSACTION_BYTES_MAX:
            raise _too_large()
        self.writes[key] = packed
        if self.integers:
            self.integers.discard(key)

    def delete_stored(self, key: bytes) -> None:
        """Delete a key that is stored. It counts as much as the commit counts it.

        Raises:
            TransactionTooLarge: it is too much; the key is not among the writes.
        """
        size = 4 * len(head_key(key)) + WRITE_BYTES - len(key) - _OVERHEAD_BYTES
        self._bytes += size
        self.write(key, None)

    def write_integer(self, key: bytes, packed: bytes) -> None:
        """Set ``key`` to an integer.

        Raises:
            TransactionTooLarge: there are too many bytes.
        """
        self.write(key, packed)
        if self.integers:
            self.integers.add(key)
        else:
            self.integers = {key}

    def send(self, message: EnqueueMessage | EnqueueUpdate, size: int) -> None:
        """Add a message or a deferred update of ``size`` bytes.

        Raises:
            TransactionTooLarge: there are too many bytes.
        """
        self._bytes += size + _OVERHEAD_BYTES
        if self._bytes > TRANSACTION_BYTES_MAX:
            raise _too_large()
        if self.sends:
            self.sends.append(message)
        else:
            self.sends = [message]

    def grow(self, size: int) -> None:
        """Count ``size`` bytes more.

        Raises:
            TransactionTooLarge: there are too many bytes.
        """
        self._bytes += size + _OVERHEAD_BYTES
        if self._bytes > TRANSACTION_BYTES_MAX:
            raise _too_large()

    def count_peeked(self, key: bytes, found: list[tuple[bytes, bytes]]) -> None:
        """Count messages of a peek, which the commit has to check.

        Raises:
            TransactionTooLarge: there are too many.
        """
        if len(found) > PEEKED_MESSAGES_MAX:
            raise TransactionTooLarge(
                f"more than {PEEKED_MESSAGES_MAX} messages of {shorten(key)} were peeked at, which "
                "a commit cannot check; nothing was changed: peek with a lower limit"
            )
        for _, stored in found:
            self.grow(len(stored))

    # --- reading the buffer

    def value(self, key: bytes, codec: Packing) -> Any:
        """Return the value written to ``key``, unpacked; ``None`` if the key was deleted."""
        written = self.writes[key]
        return None if written is None else codec.decode(written, key, integer=key in self.integers)

    def writes_in(self, start: bytes, end: bytes | None) -> list[tuple[bytes, bytes | None]]:
        """Return the writes to ``[start, end)``."""
        return [(k, v) for k, v in self.writes.items() if k >= start and (end is None or k < end)]

    def integers_in(self, page: Page) -> set[bytes]:
        """Return the keys that hold integers in a page after these writes."""
        stored = {page.pairs[index][0] for index in page.integers}
        return (stored - self.writes.keys()) | self.integers

    # --- at the commit

    def requests(self) -> list[Any]:
        """Return the writes, in the form of the commit."""
        integers = self.integers
        return [
            Delete(key) if value is None else Put(key, value, key in integers)
            for key, value in self.writes.items()
        ]


def _too_large() -> TransactionTooLarge:
    return TransactionTooLarge(
        f"the transaction has gathered more than {TRANSACTION_BYTES_MAX} bytes of writes "
        "and messages; nothing was changed: do the work in smaller transactions"
    )


def overlaid(
    page: Page, own: list[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterable[tuple[bytes, bytes]]:
    """Return the pairs of a page of a scan after the transaction's ``own`` writes to its span."""
    if not own:
        return page.pairs
    start, end = page.start, page.end
    here = {k: v for k, v in own if k >= start and (end is None or k < end)}
    merged = {**dict(page.pairs), **here}
    return [(k, v) for k, v in sorted(merged.items(), reverse=reverse) if v is not None]


def size_of(request: UpdateRequest) -> int:
    """Return about how many bytes a deferred update has."""
    match request:
        case Increment() | Delete():
            return 2 * len(request.key)
        case Put(key=key, value=value):
            return len(key) + len(value)
        case Accounting(key=key, deltas=deltas):
            return 2 * len(key) + sum(map(len, deltas))
    return len(request.start) + len(request.end or b"")


class WriteBuffer:
    """The writes and messages of a transaction."""

    __slots__ = ("_buffer", "_codec", "_lifetime", "_sender")

    _sender: Sender
    _codec: Packing
    _lifetime: Lifetime
    _buffer: Buffer

    def share(self, other: WriteBuffer) -> None:
        """Let ``other`` gather for the same transaction.

        For layers on top.

        Args:
            other: the other form.
        """
        other._sender = self._sender
        other._codec = self._codec
        other._lifetime = self._lifetime
        other._buffer = self._buffer

    @property
    def lifetime(self) -> Lifetime:
        """Return the lifetime, for layers on top, such as workers."""
        return self._lifetime

    def put(self, key: bytes, value: Any) -> None:
        """Set ``key`` to ``value`` when the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        Args:
            key: up to 8 KiB.
            value: ``bytes``, or what the codec packs; up to 1 MiB.

        Raises:
            TypeError: the codec cannot pack ``value``; without a codec: it is not ``bytes``.
            KeyTooLarge, ValueTooLarge: the key has more than 8 KiB, the value more than 1 MiB.
            TransactionTooLarge: with it, the transaction has gathered more than 16 MiB.
            TransactionClosed: it has ended.
        """
        if self._lifetime.closed:
            self._lifetime.check_open()
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = arguments.key(key)
        self._buffer.write(key, arguments.value(value, self._codec, key))

    def delete(self, key: bytes) -> None:
        """Remove ``key`` when the transaction commits, if it is there.

        A plain call, also with asyncio: it is not awaited.

        Args:
            key: up to 8 KiB.

        Raises:
            KeyTooLarge, TransactionTooLarge, TransactionClosed: see ``put``.
        """
        self._lifetime.check_open()
        self._buffer.write(arguments.key(key), None)

    def enqueue_message(
        self,
        key: bytes,
        value: Any,
        *,
        headers: dict[str, Any] | None = None,
        deliver_at: arguments.Due | None = None,
    ) -> None:
        """Send ``value`` to the inbox of ``key`` when, and only if, the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        Args:
            key: the recipient; it need not exist.
            value: the payload, 1 MiB at most, headers included.
            headers: text to text, bytes, numbers, bools or ``None``; 64 KiB at most.
            deliver_at: not before this aware ``datetime``, or this ``timedelta`` or number of
                seconds from now.

        Raises:
            ValueTooLarge: payload and headers have more than 1 MiB.
            KeyTooLarge, TransactionTooLarge, TransactionClosed: see ``put``.
        """
        if self._lifetime.closed:
            self._lifetime.check_open()
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = arguments.key(key)
        extra, extra_bytes = None, 0
        if headers is not None:
            extra, extra_bytes = arguments.headers(headers, key)
        payload = arguments.message(value, self._codec, key, extra_bytes)
        due = 0 if deliver_at is None else arguments.due(deliver_at, "deliver_at")
        size = len(key) + len(payload) + extra_bytes
        self._buffer.send(EnqueueMessage(key, payload, extra, due), size)

    def enqueue_update(
        self, request: UpdateRequest, *, execute_at: arguments.Due | None = None
    ) -> None:
        """Carry out ``request`` once, soon after the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        An update that can never be carried out becomes a dead letter.

        Args:
            request: ``Put``, ``Increment``, ``Delete``, ``DeleteRange`` or ``Accounting``.
            execute_at: like ``deliver_at`` of :meth:`enqueue_message`.

        Raises:
            KeyTooLarge, ValueTooLarge, TransactionTooLarge, TransactionClosed: see ``put``.
        """
        if self._lifetime.closed:
            self._lifetime.check_open()
        checked = arguments.update(request, self._codec)
        due = 0 if execute_at is None else arguments.due(execute_at, "execute_at")
        self._buffer.send(EnqueueUpdate(checked, due), size_of(checked))
