"""The selection of the messages that a reap is given: the first free ones of the inbox.

A message is free if no other transaction holds it (:mod:`.claims`), and nothing holds it up
(:mod:`.holds`). Free messages are read from the engine, unless they were read ahead
(:mod:`.ahead`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.kv import keys
from postroom.limits import LIST_MAX
from postroom.messaging.claims import Claims, Free
from postroom.messaging.pages import fill_up_to
from postroom.messaging.requests import MESSAGE_ID_BYTES, Delivered, InboxIndexEntry, ReapQueue
from postroom.ranges.evaluation import View

LAST_ID: Final = b"\xff" * MESSAGE_ID_BYTES
NIL: Final = 0xC0
"""The last byte of an inbox entry that has no trial."""

Stored = list[tuple[bytes, bytes]]
"""The ids of messages, and their stored forms."""

_delivered = msgspec.msgpack.Decoder(Delivered)


def first_free(
    view: View, request: ReapQueue, mail: InboxIndexEntry, claims: Claims
) -> tuple[Stored, bool, bytes]:
    """Return the oldest free messages, whether there are more, and the id of the next one.

    The next one is the one that comes right after them; its id is empty if it is not known.
    """
    key, ahead = request.key, claims.ahead
    free = claims.free(key, mail.oldest)
    if mail.held and free.start >= mail.held:
        return [], False, b""
    is_plain = not (free.claimed or mail.held)
    asked = min(request.messages_max, LIST_MAX)
    known = ahead.find(key, free.start, asked, request.bytes_max) if is_plain else None
    taken, following = known or _read(view, request, free, mail, claims)
    view.steps += len(taken)
    if request.attempts_max and (together := _together(taken)) < len(taken):
        following = taken[together][0]
        del taken[together:]
        ahead.forget(key)
    elif known is not None:
        ahead.give(key, len(taken))
    return taken, bool(following), b"" if free.claimed else following


def _read(
    view: View, request: ReapQueue, free: Free, mail: InboxIndexEntry, claims: Claims
) -> tuple[Stored, bytes]:
    """Read free messages; return them and the id of the next one. Keep more for a later reap."""
    prefix, claimed = keys.inbox_prefix(request.key), free.claimed
    entries = view.iterate(prefix + free.start, prefix + (mail.held or LAST_ID))
    if claimed:
        entries = (each for each in entries if each[0][-MESSAGE_ID_BYTES:] not in claimed)
    found, beyond = fill_up_to(entries, min(request.messages_max, LIST_MAX), request.bytes_max)
    taken = [(raw[-20:], stored) for raw, stored in found]
    if beyond is None:
        return taken, b""
    if taken and not (claimed or mail.held):
        view.steps += claims.ahead.read(request.key, free.start, taken, beyond, entries)
    return taken, beyond[0][-MESSAGE_ID_BYTES:]


def _together(found: Stored) -> int:
    """Return how many of the messages are given together.

    A message that was tried before is given alone, so that messages that were tried along with it
    do not share its end.
    """
    for number, (_, stored) in enumerate(found):
        if stored[-1] != NIL and _delivered.decode(stored).trial is not None:
            return max(number, 1)
    return len(found)
