"""Records of a queue that cannot be read: what is told of them, and that no other queue suffers.

::

    restart · firing · time ─▶ a record that nothing can decode ─▶ its queue is set aside
    a request of a client   ─▶ the same ─────────────────────────▶ that request is refused

A queue that is set aside serves nobody until what is stored was replaced, or the queue was dropped
(:mod:`.dropping`). All others go on. It is set aside in the leaseholder's memory only: nothing is
written, the next leaseholder finds the same by itself, and followers apply what was written without
reading it.

What the storage engine cannot read (``BlockDamaged``) is something else: that is damage of a disk,
not of a record, and another node may have it whole. It goes its own way.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from postroom.errors import StoreCorrupted
from postroom.limits import TROUBLE_CHARACTERS_MAX
from postroom.log_once import shown

T = TypeVar("T")

UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a damaged record may raise: a text may be no UTF-8, headers may be too deep."""
UNREADABLE: Final = (*UNDECODABLE, ValueError, LookupError, OverflowError, StoreCorrupted)
"""What reading a damaged record may raise. Who catches this lets ``BlockDamaged`` through first."""


class QueueDamaged(StoreCorrupted):
    """A record of a queue cannot be read. To users it is a ``StoreCorrupted``.

    Attributes:
        queue: its name.
    """

    def __init__(self, queue: str, message: str) -> None:
        super().__init__(message)
        self.queue = queue


def damaged(queue: str, what: str, error: object) -> QueueDamaged:
    """What is told of a queue with such a record.

    Args:
        queue: its name.
        what: which record it is.
        error: what reading it has come to.
    """
    why = shown(str(error), TROUBLE_CHARACTERS_MAX)
    return QueueDamaged(
        queue,
        f"the queue {queue!r} is damaged: {what} cannot be read ({why}); nothing was changed: "
        "restore a backup, or drop the queue with all that it holds; other queues go on",
    )


def decoded(decoder: msgspec.msgpack.Decoder[T], packed: bytes, queue: str) -> T:
    """A record of the queue of that name.

    Raises:
        QueueDamaged: it is none.
    """
    try:
        return decoder.decode(packed)
    except UNDECODABLE as error:
        kind = decoder.type
        what = f"a stored {getattr(kind, '__name__', 'list').lower()} of {len(packed)} bytes"
        raise damaged(queue, what, error) from error


__all__ = ["UNDECODABLE", "UNREADABLE", "QueueDamaged", "damaged", "decoded"]
