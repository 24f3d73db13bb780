"""The approximate bytes of an answer before it is encoded, which bound unread answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from postroom.messaging.bulk_requests import InboxesPage, LettersPage, OutboxPage
from postroom.messaging.image_requests import Counted, ImagePage, Restoration
from postroom.messaging.recount_requests import (
    BesidePage,
    CountersPage,
    InboxIndexPage,
    PlacesPage,
)
from postroom.messaging.requests import Peeked, ReapedMessages
from postroom.messaging.staging_requests import Staging
from postroom.ranges.bulk_requests import AccountingPage, Columns
from postroom.ranges.requests import Committed, CommittedChanges, Pairs, Value, Values

_LEAST_BYTES: Final = 32


def _values(result: Values) -> int:
    return sum(8 + len(value) for value in result.values if value is not None)


def _pairs(result: Pairs) -> int:
    return sum(8 + len(key) + len(value) for key, value in result.pairs)


def _changes(result: CommittedChanges) -> int:
    return sum(24 + len(each.key) + len(each.value or b"") for each in result.changes)


def _messages(result: ReapedMessages | Peeked) -> int:
    return sum(32 + len(stored) for _, stored in result.messages)


def _columns(result: Columns) -> int:
    return len(result.keys) + len(result.values) + 17 * result.rows


def _image(result: ImagePage) -> int:
    return len(result.names) + len(result.stored) + 8 * result.rows


def _inboxes(result: InboxesPage) -> int:
    return sum(
        len(key) + sum(32 + len(stored) for _, stored in messages)
        for key, messages in result.inboxes
    )


def _encoded(result: Any) -> int:
    return len(msgspec.msgpack.encode(result))


_BYTES: Final[dict[type, Callable[[Any], int]]] = {
    Values: _values,
    Pairs: _pairs,
    CommittedChanges: _changes,
    ReapedMessages: _messages,
    Peeked: _messages,
    Columns: _columns,
    ImagePage: _image,
    Restoration: _encoded,
    Counted: _encoded,
    InboxesPage: _inboxes,
    OutboxPage: _encoded,
    LettersPage: _encoded,
    CountersPage: _encoded,
    InboxIndexPage: _encoded,
    PlacesPage: _encoded,
    BesidePage: _encoded,
    AccountingPage: _encoded,
    Staging: _encoded,
    Committed: lambda result: 16 * len(result.answers),
    list: _encoded,
    dict: _encoded,
}


def answer_bytes(result: Any) -> int:
    """Estimate the bytes of ``result`` in a frame, and in memory until then."""
    if type(result) is Value:
        return _LEAST_BYTES + len(result.value or b"")
    weigh = _BYTES.get(type(result))
    return _LEAST_BYTES if weigh is None else _LEAST_BYTES + weigh(result)


def failure_bytes(extra: Any) -> int:
    """Estimate the bytes of a failure that carries ``extra``."""
    return 256 + (len(extra) if isinstance(extra, bytes) else 0)
