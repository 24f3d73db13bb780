"""Scheduled messages and updates, and dead letters, in the form for applications."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from postroom.client.codec import Packing
from postroom.client.values import DeadLetter, Scheduled
from postroom.errors import WrongType
from postroom.kv.clock import Timestamp
from postroom.messaging import due as times
from postroom.messaging.requests import (
    SCHEDULED_ID_BYTES,
    Deliverable,
    ScheduledEntry,
    StoredDeadLetter,
)
from postroom.ranges.headers import unpacked
from postroom.ranges.requests import DeleteRange

_SHOWN_CHARACTERS: Final = 100
"""The number of characters of a wrong id that an error shows."""


def dead_letter(letter: StoredDeadLetter, codec: Packing) -> DeadLetter:
    """Return a dead letter, unpacked."""
    record = letter.record
    entry = record.update or record.message
    assert entry is not None
    request = record.update.request if record.update is not None else None
    told = (letter.id.hex(), record.reason, entry.transaction_id, request)
    message = record.message
    if message is None:
        return DeadLetter(*told, None, entry.source)
    value = _unpacked(message, codec)
    attempts = 0 if message.trial is None else message.trial.attempts
    return DeadLetter(*told, value, entry.source, message.key, unpacked(message.headers), attempts)


def scheduled(stored: ScheduledEntry, codec: Packing) -> Scheduled:
    """Return a scheduled message or update, unpacked."""
    id_ = stored.id.hex()
    due = Timestamp(times.shown(int.from_bytes(stored.id[:8], "big")))
    update, message = stored.update, stored.message
    if update is not None:
        request = update.request
        about = request.start if isinstance(request, DeleteRange) else request.key
        nothing: dict[str, Any] = {}
        return Scheduled(
            id_, due, about, request, None, nothing, update.transaction_id, update.source
        )
    assert message is not None
    value = _unpacked(message, codec)
    told = Scheduled(
        id_, due, message.key, None, value, unpacked(message.headers), message.transaction_id,
        message.source,
    )  # fmt: skip
    trial = message.trial
    return told if trial is None else told._replace(attempts=trial.attempts, last_error=trial.error)


def _unpacked(message: Deliverable, codec: Packing) -> Any:
    """Return the payload; as it is stored, if it cannot be unpacked: that may be why it is here."""
    try:
        return codec.decode(message.value, message.key)
    except WrongType:
        return message.value


def dead_letter_ids(given: Iterable[str]) -> list[bytes]:
    """Return ids of dead letters in the form of requests."""
    return _ids(given, "a dead letter", "dead_letters()")


def scheduled_ids(given: Iterable[str]) -> list[bytes]:
    """Return ids of scheduled messages and updates in the form of requests."""
    found = _ids(given, "anything scheduled", "scheduled()")
    for each in found:
        if len(each) != SCHEDULED_ID_BYTES:
            raise _is_no_id(each.hex(), "anything scheduled", "scheduled()")
    return found


def _ids(given: Iterable[str], what: str, source: str) -> list[bytes]:
    if isinstance(given, str):
        raise TypeError(f"give a list of ids, as {source} tells them")
    return [_id(each, what, source) for each in given]


def _id(given: object, what: str, source: str) -> bytes:
    if isinstance(given, str):
        try:
            return bytes.fromhex(given)
        except ValueError:
            pass
    raise _is_no_id(given, what, source)


def _is_no_id(given: object, what: str, source: str) -> ValueError:
    told = repr(given)[:_SHOWN_CHARACTERS]
    return ValueError(f"{told} is not the id of {what}; nothing was changed: use those of {source}")
