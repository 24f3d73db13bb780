"""The approximate bytes of an answer before it is encoded, which bound unread answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from postroom.messaging.bulk_requests import RecordsPage
from postroom.messaging.image_requests import Counted, Restoration
from postroom.messaging.requests import Peeked, ReapedMessages
from postroom.messaging.staging_requests import Staging
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


def _records(result: RecordsPage) -> int:
    return sum(16 + len(each.data) + len(each.ends) for each in result.columns.values())


def _encoded(result: Any) -> int:
    return len(msgspec.msgpack.encode(result))


_BYTES: Final[dict[type, Callable[[Any], int]]] = {
    Values: _values,
    Pairs: _pairs,
    CommittedChanges: _changes,
    ReapedMessages: _messages,
    Peeked: _messages,
    RecordsPage: _records,
    Restoration: _encoded,
    Counted: _encoded,
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
