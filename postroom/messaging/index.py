"""The index of inboxes: an entry for each that holds something, or is held up.

It tells how many messages there are, and the id of the first; so who has mail is known without
scanning the keys, and reading begins at the first message.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator

import msgspec

from postroom import limits
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.limits import INBOXES_LISTED_MAX
from postroom.messaging.requests import Inbox, ListInboxes, Mail
from postroom.ranges.evaluation import Evaluation, View

_encode = msgspec.msgpack.encode
_mail = msgspec.msgpack.Decoder(Mail)


def read_mail(reader: View | Evaluation, key: bytes) -> Mail | None:
    """The entry of an inbox in the index; ``None``: it holds nothing."""
    stored = reader.get(keys.mail_key(key))
    return None if stored is None else _mail.decode(stored)


def write_mail(ctx: Evaluation, key: bytes, left: Mail) -> None:
    """The entry of an inbox in the index; of one that is empty there is none, but it is held up."""
    if not left.messages and left.oldest:
        left = Mail(0, b"", left.held)
    is_needed = left.messages or left.held
    ctx.writes[keys.mail_key(key)] = _encode(left) if is_needed else None


def mail_entries(reader: Reader, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, Mail]]:
    """All entries of a span, with their engine keys, in order."""
    for raw, stored in reader.iterate(*keys.mail_span(start, end)):
        yield raw, _mail.decode(stored)


def list_inboxes(view: View, request: ListInboxes) -> Generator[None, None, list[Inbox]]:
    """``ListInboxes``: goes through the index of the span, over as many turns as it takes.

    Raises:
        Invalid: there are more than were asked for, and that was more than one answer holds; or
            their keys take more than one answer holds.
    """
    inboxes_max = min(request.inboxes_max, INBOXES_LISTED_MAX)
    first: list[_Waiting] = []
    listed_bytes = 0
    start = request.start
    while inboxes_max:
        lower, upper = keys.mail_span(start, request.end)
        raw = b""
        for raw, stored in view.iterate(lower, upper):
            view.steps += 1
            waiting = _Waiting(raw, _mail.decode(stored))
            if not waiting.counts(ready=request.ready):
                pass
            elif len(first) < inboxes_max:
                heapq.heappush(first, waiting)
                listed_bytes += len(raw)
            elif request.inboxes_max > inboxes_max:
                raise Invalid(
                    f"the span has more than {inboxes_max} inboxes with mail, which is as many "
                    "as one request lists: list parts of it, or give a lower limit"
                )
            elif first[0] < waiting:
                listed_bytes += len(raw) - len(heapq.heapreplace(first, waiting).raw)
            if listed_bytes > limits.INBOXES_LISTED_BYTES_MAX:
                raise Invalid(
                    f"the keys of the inboxes with mail take more than "
                    f"{limits.INBOXES_LISTED_BYTES_MAX} bytes, which is as much as one request "
                    "lists: list parts of the span, or give a lower limit"
                )
            if view.is_used_up():
                break
        else:
            break
        yield
        start = keys.user_key(raw) + b"\x00"
    first.sort(reverse=True)
    return [waiting.told() for waiting in first]


class _Waiting:
    """An inbox in a heap whose root is the one that has waited least."""

    __slots__ = ("_held_up", "_mail", "raw")

    def __init__(self, raw: bytes, mail: Mail) -> None:
        self.raw = raw
        self._mail = mail
        self._held_up = bool(mail.held) and mail.oldest > mail.held

    def counts(self, *, ready: bool) -> bool:
        """Whether there is mail; ``ready``: that nothing holds up."""
        return bool(self._mail.messages) and not (ready and self._held_up)

    def told(self) -> Inbox:
        """As it is answered."""
        mail, oldest = self._mail, int.from_bytes(self._mail.oldest[:8], "big")
        return Inbox(keys.user_key(self.raw), mail.messages, oldest, self._held_up)

    def __lt__(self, other: _Waiting) -> bool:
        return (self._mail.oldest, self.raw) > (other._mail.oldest, other.raw)
