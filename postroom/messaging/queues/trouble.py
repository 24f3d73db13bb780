"""The failures of queues: records that cannot be read, and queues that are set aside.

::

    restart · firing · time ─▶ a record that nothing can decode ─▶ its queue is set aside
    a request of a client   ─▶ the same ─────────────────────────▶ that request is refused

A queue that is set aside serves nobody until the stored records are replaced, or the queue is
dropped (:mod:`.dropping`). All others go on. It is set aside in the leaseholder's memory only.
Nothing is written: the next leaseholder finds the damage by itself, and followers apply records
without reading them.

A block that the storage engine cannot read (``BlockDamaged``) is different. It is damage of a disk,
not of a record, and another node may have it whole. It is handled elsewhere.

A manager notes how often its queue fails, and why.

A queue whose step fails is set aside for a second, again and again, and the others go on. Therefore
it is reported in the status of the service and in the statistics of the queue, not only in the log.
A queue that has not failed for a minute is sound.
"""

from __future__ import annotations

from collections.abc import Iterable
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


SET_ASIDE_SECONDS: Final = 1.0
SOUND_SECONDS: Final = 60.0


class Trouble:
    """The failures of one queue.

    Attributes:
        until: the time on the monotonic clock until which it is set aside.
    """

    __slots__ = ("_at", "_error", "_failures", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0
        self._error = ""
        self._at = 0.0

    def failed(self, error: BaseException, now: float) -> bool:
        """Note that a step has failed; return whether the queue was sound before."""
        was_sound = not self.failures(now)
        self._failures = 1 if was_sound else self._failures + 1
        self._error = shown(f"{type(error).__name__}: {error}", TROUBLE_CHARACTERS_MAX)
        self._at, self.until = now, now + SET_ASIDE_SECONDS
        return was_sound

    def failures(self, now: float) -> int:
        """Return how often it has failed since it was sound."""
        return self._failures if now - self._at < SOUND_SECONDS else 0

    def why(self, now: float) -> str:
        """Return why it failed last; empty: it is sound."""
        return self._error if self.failures(now) else ""


class Troubles:
    """The failures of the queues of a range that are not sound, by name."""

    def __init__(self) -> None:
        self._of: dict[str, Trouble] = {}

    def add(self, queue: str, trouble: Trouble) -> None:
        """Add a queue that has failed."""
        self._of[queue] = trouble

    def clear(self) -> None:
        """Forget all queues."""
        self._of.clear()

    def told(self, damaged: Iterable[str], now: float) -> tuple[int, str]:
        """Return how often queues have failed, and why the first of them has.

        Args:
            damaged: descriptions of the queues that are set aside as damaged: each is one failure.
            now: seconds of the monotonic clock.
        """
        said = list(damaged)
        failures = len(said)
        for queue, trouble in list(self._of.items()):
            if not trouble.failures(now):
                del self._of[queue]
                continue
            failures += trouble.failures(now)
            said.append(f"queue {queue!r}: {trouble.why(now)}")
        if not said:
            return 0, ""
        more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
        return failures, said[0] + more
