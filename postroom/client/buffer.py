"""The writes and messages that a transaction has gathered for its commit.

Writes are a dictionary by key: the last one to a key counts. Messages and deferred updates are a
list, in the order of their calls. All of it together has a limit in bytes. Each call that adds
something checks it: a transaction learns of an excess at the call that exceeds the limit.

``WriteBuffer`` has the calls of a transaction that gather writes, without asking the store, in both
forms. They check their arguments and add them to the ``Buffer``. They are the most frequent calls.
The synchronous form of a transaction therefore has them itself, not by way of the asyncio form, and
valid arguments pass without a further call.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from postroom.client import arguments
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.pages import Page
from postroom.client.sender import Sender
from postroom.errors import TransactionTooLarge, shorten
from postroom.kv.keys import head_key
from postroom.limits import (
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PEEKED_MESSAGES_MAX,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from postroom.messaging.requests import EnqueueMessage, EnqueueUpdate
from postroom.ranges.evaluation import WRITE_BYTES
from postroom.ranges.requests import Delete, Put, UpdateRequest

_OVERHEAD_BYTES: Final = 32

NO_LIST: Final[Any] = ()
"""A placeholder for lists that are still empty.

Python's garbage collector runs when the containers that were made outnumber those that were freed
by some threshold. With six empty lists in each of 64 concurrent transactions, it runs all the time.
"""


class Buffer(msgspec.Struct, eq=False, gc=False):
    """The writes and messages of one transaction.

    It is a struct, since a struct is made in few steps. The garbage collector need not see it,
    because nothing in it leads back to it.

    Attributes:
        writes: the last write to each key, as the commit has it.
        sends: the messages and updates, in the order of their calls.
    """

    writes: dict[bytes, Put | Delete] = {}
    sends: list[EnqueueMessage | EnqueueUpdate] = NO_LIST
    _bytes: int = 0

    def write(self, write: Put | Delete, value_bytes: int = 0) -> None:
        """Set or delete a key.

        Raises:
            TransactionTooLarge: there are too many bytes.
        """
        key = write.key
        self._bytes += len(key) + value_bytes + _OVERHEAD_BYTES
        if self._bytes > TRANSACTION_BYTES_MAX:
            raise _too_large()
        self.writes[key] = write

    def delete_stored(self, key: bytes) -> None:
        """Delete a key that is stored. It counts as much as the commit counts it.

        Raises:
            TransactionTooLarge: it is too much; the key is not among the writes.
        """
        size = 4 * len(head_key(key)) + WRITE_BYTES - len(key) - _OVERHEAD_BYTES
        self._bytes += size
        self.write(Delete(key))

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

    def stored(self, key: bytes) -> tuple[bytes | None, bool]:
        """Return the value written to ``key``, packed, and whether it is an integer.

        ``None``: the key was deleted.
        """
        write = self.writes[key]
        return (write.value, write.integer) if type(write) is Put else (None, False)

    def value(self, key: bytes, codec: Packing) -> Any:
        """Return the value written to ``key``, unpacked; ``None`` if the key was deleted."""
        packed, integer = self.stored(key)
        return None if packed is None else codec.decode(packed, key, integer=integer)

    def writes_in(self, start: bytes, end: bytes | None) -> list[Put | Delete]:
        """Return the writes to ``[start, end)``."""
        return [
            write for key, write in self.writes.items()
            if key >= start and (end is None or key < end)
        ]  # fmt: skip


def _too_large() -> TransactionTooLarge:
    return TransactionTooLarge(
        f"the transaction has gathered more than {TRANSACTION_BYTES_MAX} bytes of writes "
        "and messages; nothing was changed: do the work in smaller transactions"
    )


def overlaid(
    page: Page, own: list[Put | Delete], *, reverse: bool
) -> list[tuple[bytes, bytes, bool]]:
    """Return the pairs of a page of a scan after the transaction's ``own`` writes to its span.

    The third element of each tells whether the value is an integer.
    """
    integers = frozenset(page.integers)
    found = [(key, value, index in integers) for index, (key, value) in enumerate(page.pairs)]
    start, end = page.start, page.end
    here = {each.key: each for each in own if each.key >= start and (end is None or each.key < end)}
    if not here:
        return found
    found = [each for each in found if each[0] not in here]
    found += [(each.key, each.value, each.integer) for each in here.values() if type(each) is Put]
    return sorted(found, reverse=reverse)


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
        codec = self._codec
        if codec.packs or type(value) is not bytes or len(value) > VALUE_BYTES_MAX:
            value = arguments.value(value, codec, key)
        self._buffer.write(Put(key, value), len(value))

    def delete(self, key: bytes) -> None:
        """Remove ``key`` when the transaction commits, if it is there.

        A plain call, also with asyncio: it is not awaited.

        Args:
            key: up to 8 KiB.

        Raises:
            KeyTooLarge, TransactionTooLarge, TransactionClosed: see ``put``.
        """
        self._lifetime.check_open()
        self._buffer.write(Delete(arguments.key(key)))

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
        codec = self._codec
        if codec.packs or type(value) is not bytes or len(value) + extra_bytes > MESSAGE_BYTES_MAX:
            value = arguments.message(value, codec, key, extra_bytes)
        due = 0 if deliver_at is None else arguments.due(deliver_at, "deliver_at")
        size = len(key) + len(value) + extra_bytes
        self._buffer.send(EnqueueMessage(key, value, extra, due), size)

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
        checked, size = arguments.update(request, self._codec)
        due = 0 if execute_at is None else arguments.due(execute_at, "execute_at")
        self._buffer.send(EnqueueUpdate(checked, due), size)
