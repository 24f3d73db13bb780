"""The calls with which a transaction gathers writes, without asking the store, in both forms.

They check their arguments and add them to the transaction's :class:`.buffer.Buffer`. They are the
most frequent calls. The synchronous form of a transaction therefore has them itself, not by way of
the asyncio form, and valid arguments pass without a further call.
"""

from __future__ import annotations

from typing import Any

from postroom.client import arguments
from postroom.client.buffer import Buffer, size_of
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.sender import Sender
from postroom.limits import KEY_BYTES_MAX
from postroom.messaging.requests import EnqueueMessage, EnqueueUpdate
from postroom.ranges.requests import UpdateRequest


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
        due = 0 if deliver_at is None else self._due(deliver_at, "deliver_at")
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
        due = 0 if execute_at is None else self._due(execute_at, "execute_at")
        self._buffer.send(EnqueueUpdate(checked, due), size_of(checked))

    def _due(self, given: arguments.Due, name: str) -> int:
        return arguments.due(given, name)


__all__ = ["WriteBuffer"]
