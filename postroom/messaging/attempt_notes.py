"""The attempts that have to be written down, and the service that sends them.

::

    a reaper vanishes with messages ─▶ "lost"   the attempt counts; an heir holds them until then
    reap, in a new process ──────────▶ "begun"  before the messages are given to the reaper
    ... and released again ──────────▶ "ended"  that attempt ended with a word: it does not count

Claims are in the leaseholder's memory. The leaseholder knows how the claims of a client elsewhere
end. But an embedded store ends with its process, and so do the claims: a message that kills the
process would be tried for ever.

Therefore a new process of an embedded store writes an attempt down as begun before it gives a
reaper messages *that were sent before the process began*. It does this for reapers with a limit of
attempts. If the process ends before the attempt is over, the next process finds and counts it.
Messages that are sent later cost nothing. Thus a message that kills its process is tried at most
once more than the limit.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from postroom.errors import (
    CommitUnknown,
    Retryable,
    StoreCorrupted,
    TransactionTooLarge,
    Unavailable,
)
from postroom.kv import keys
from postroom.messaging.attempts import Stored, first_ids, stale_attempt
from postroom.messaging.claims import Claims
from postroom.messaging.requests import Delivered, NoteAttempts, ReapedMessages, ReapQueue
from postroom.messaging.services import Signal
from postroom.ranges.evaluation import MustWait
from postroom.ranges.registry import Registry

PROCESS_HAS_ENDED: Final = "the process that had it has ended"
_NIL: Final = 0xC0
_NO_CLIENT: Final = bytes(8)
_NOTED_TOGETHER: Final = 1000
"""The number of messages in one note; a client may reap as many as it asks for."""

_log = logging.getLogger(__name__)
_delivered = msgspec.msgpack.Decoder(Delivered)


class _Beginning:
    """A reap whose attempts are being written down, and the token that it waits for.

    Attributes:
        request: the reap.
        reaped: its answer.
        is_written: whether it may be answered now.
    """

    def __init__(self, request: ReapQueue, reaped: ReapedMessages) -> None:
        self.request = request
        self.reaped = reaped
        self.is_written = False


class AttemptNotes:
    """The notes about attempts of one range, and the service that writes them.

    Args:
        claims: the claims of the inboxes.
        reading: about now, as a timestamp.
        signal: the signal that wakes the service.
        rouse: a function that lets a store that rests begin to work.
        wake: a function that answers the requests that wait for tokens.
        is_embedded: whether clients end with this process.

    Attributes:
        since: when this leaseholder began to serve.
    """

    def __init__(
        self,
        claims: Claims,
        *,
        reading: Callable[[], int],
        signal: Signal,
        rouse: Callable[[], None],
        wake: Callable[[list[object]], None],
        is_embedded: bool,
    ) -> None:
        self.since = 0
        self._claims = claims
        self._reading = reading
        self._signal = signal
        self._rouse = rouse
        self._wake = wake
        self._is_embedded = is_embedded
        self._to_write: deque[tuple[NoteAttempts, _Beginning | None]] = deque()
        self._beginnings: dict[int, _Beginning] = {}
        self._begun: dict[bytes, list[tuple[bytes, list[bytes]]]] = {}
        self._forgotten: list[object] = []
        self._heirs = itertools.count(1)

    def register(self, registry: Registry) -> None:
        """Register the number of notes that are kept."""
        registry.sizes["attempts to note"] = lambda: len(self._to_write) + len(self._begun)

    def restart(self) -> None:
        """Begin with a new lease."""
        self.end()
        self.since = self._reading() + 1

    def end(self) -> None:
        """Forget all notes, at the end of the lease."""
        self._forgotten += self._beginnings.values()
        self._to_write.clear()
        self._beginnings.clear()
        self._begun.clear()

    def _write(self, note: NoteAttempts, beginning: _Beginning | None = None) -> None:
        self._to_write.append((note, beginning))
        self._rouse()
        self._signal.set()

    # --- attempts that are lost

    def vanished(self, transaction_id: bytes, why: str) -> None:
        """Write down the lost attempts of a transaction that has ended without a word."""
        self._begun.pop(transaction_id, None)
        for heir, taken in self._claims.pass_on(transaction_id, self._heir):
            ids = taken.ids
            for first in range(0, len(ids), _NOTED_TOGETHER):
                some = ids[first : first + _NOTED_TOGETHER]
                # The heir is released with the last note.
                holder = heir if first + len(some) == len(ids) else b""
                self._write(NoteAttempts(taken.key, some, "lost", why, taken.attempts_max, holder))

    def _heir(self) -> bytes:
        return _NO_CLIENT + keys.u64(next(self._heirs))

    # --- attempts that are written down before they begin

    def before(self, request: ReapQueue, reaped: ReapedMessages) -> None:
        """Write down the attempts of a reap that is about to be answered, if they must be.

        Raises:
            MustWait: they are being written down.
        """
        began = keys.u64(self.since)
        if not self._is_embedded or reaped.messages[0][0] >= began:
            return
        older = [
            pair for pair in reaped.messages
            if pair[0] < began and (request.attempts_max or pair[1][-1] != _NIL)
        ]  # fmt: skip
        if not older:
            return
        messages = [(id_, _delivered.decode(stored)) for id_, stored in older]
        if not any(self._must_begin(request, each) for _, each in messages):
            begun = [id_ for id_, each in messages if each.trial is not None and each.trial.begun]
            self._handed_out(request, begun)
            return
        beginning = _Beginning(request, reaped)
        self._beginnings[id(request)] = beginning
        note = NoteAttempts(
            request.key, first_ids(reaped.messages), "begun", PROCESS_HAS_ENDED,
            request.attempts_max, request.transaction_id,
        )  # fmt: skip
        self._write(note, beginning)
        # No reap may wait for it by then: the end of the transaction reverts it.
        self._handed_out(request, note.ids)
        raise MustWait(beginning)

    def _must_begin(self, request: ReapQueue, message: Delivered) -> bool:
        if stale_attempt(message, self.since):
            return True
        is_begun = message.trial is not None and message.trial.begun
        return request.attempts_max > 0 and not is_begun

    def given(self, request: ReapQueue) -> ReapedMessages | None:
        """Return the answer of a reap whose attempts are written down, or `None` if there is none.

        Raises:
            MustWait: they are being written down.
        """
        beginning = self._beginnings.get(id(request)) if self._beginnings else None
        if beginning is None:
            return None
        if not beginning.is_written:
            raise MustWait(beginning)
        del self._beginnings[id(request)]
        return beginning.reaped if beginning.reaped.messages else None

    def _handed_out(self, request: ReapQueue, ids: list[bytes]) -> None:
        if ids:
            self._begun.setdefault(request.transaction_id, []).append((request.key, ids))

    def given_up(self, request: object) -> None:
        """Forget the attempts of a reap that is waited for no more."""
        self._beginnings.pop(id(request), None)

    def released(self, transaction_id: bytes) -> None:
        """Write down that the begun attempts of a transaction have ended with a word."""
        for key, ids in self._begun.pop(transaction_id, ()):
            self._write(NoteAttempts(key, ids, "ended", "", 0, b""))

    # --- the service

    async def run(self, send: Callable[[Any], Awaitable[Any]], poll_seconds: float) -> None:
        """Write down all notes, for ever.

        Args:
            send: a function that sends a request to the range, as upkeep.
            poll_seconds: how long it waits for the signal.
        """
        forgotten, self._forgotten = self._forgotten, []
        self._wake(forgotten)
        while True:
            pause = poll_seconds
            if self._to_write:
                note, beginning = self._to_write[0]
                try:
                    written = await self._send(send, note)
                except Retryable as error:
                    pause = error.retry_after if isinstance(error, Unavailable) else 0.0
                except (CommitUnknown, StoreCorrupted, OSError, MemoryError):
                    raise  # the note is not to blame for these
                except Exception:
                    _log.exception("what has become of an attempt cannot be written down")
                    self._written(note, beginning, None)
                    continue
                else:
                    self._written(note, beginning, written)
                    continue
            await self._signal.wait(pause)

    async def _send(self, send: Callable[[Any], Awaitable[Any]], note: NoteAttempts) -> Stored:
        """Send a note, in parts if it is too large as a whole."""
        try:
            written: Stored = await send(note)
        except TransactionTooLarge:
            half = len(note.ids) // 2
            if not half:
                raise
            first = msgspec.structs.replace(note, ids=note.ids[:half])
            second = msgspec.structs.replace(note, ids=note.ids[half:])
            return await self._send(send, first) + await self._send(send, second)
        return written

    def _written(
        self, note: NoteAttempts, beginning: _Beginning | None, written: Stored | None
    ) -> None:
        """Note that a note is written; `None`: it never will be."""
        if self._to_write and self._to_write[0][0] is note:
            self._to_write.popleft()
        if beginning is not None:
            if written is not None:
                beginning.reaped = ReapedMessages(written, beginning.reaped.more)
            beginning.is_written = True
            self._wake([beginning])
        elif note.what == "lost":
            self._wake(self._claims.release(note.holder))
