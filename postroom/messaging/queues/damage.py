"""The errors of queue records that cannot be read; they affect no other queue.

::

    restart · firing · time ─▶ a record that nothing can decode ─▶ its queue is set aside
    a request of a client   ─▶ the same ─────────────────────────▶ that request is refused

A queue that is set aside serves nobody until the stored records are replaced, or the queue is
dropped (:mod:`.dropping`). All others go on. It is set aside in the leaseholder's memory only.
Nothing is written: the next leaseholder finds the damage by itself, and followers apply records
without reading them.

A block that the storage engine cannot read (``BlockDamaged``) is different. It is damage of a disk,
not of a record, and another node may have it whole. It is handled elsewhere.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from postroom.errors import StoreCorrupted
from postroom.limits import TROUBLE_CHARACTERS_MAX
from postroom.log_once import shown

T = TypeVar("T")

UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of decoding a damaged record: a text may be no UTF-8, headers may be too deep."""
UNREADABLE: Final = (*UNDECODABLE, ValueError, LookupError, OverflowError, StoreCorrupted)
"""The errors of reading a damaged record. Let ``BlockDamaged`` through before catching these."""


class QueueDamaged(StoreCorrupted):
    """An error for a record of a queue that cannot be read. To users it is a ``StoreCorrupted``.

    Attributes:
        queue: its name.
    """

    def __init__(self, queue: str, message: str) -> None:
        super().__init__(message)
        self.queue = queue


def damaged(queue: str, what: str, error: object) -> QueueDamaged:
    """Return the error for a queue with a damaged record.

    Args:
        queue: its name.
        what: the record.
        error: the error of reading it.
    """
    why = shown(str(error), TROUBLE_CHARACTERS_MAX)
    return QueueDamaged(
        queue,
        f"the queue {queue!r} is damaged: {what} cannot be read ({why}); nothing was changed: "
        "restore a backup, or drop the queue with all that it holds; other queues go on",
    )


def decoded(decoder: msgspec.msgpack.Decoder[T], packed: bytes, queue: str) -> T:
    """Return a decoded record of a queue.

    Raises:
        QueueDamaged: it cannot be decoded.
    """
    try:
        return decoder.decode(packed)
    except UNDECODABLE as error:
        kind = decoder.type
        what = f"a stored {getattr(kind, '__name__', 'list').lower()} of {len(packed)} bytes"
        raise damaged(queue, what, error) from error


__all__ = ["UNDECODABLE", "UNREADABLE", "QueueDamaged", "damaged", "decoded"]
