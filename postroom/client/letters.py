"""What waits for its time, and what has died, as applications see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from postroom.client.codec import Packing
from postroom.client.values import DeadLetter, Scheduled
from postroom.errors import WrongType
from postroom.kv.clock import Timestamp
from postroom.messaging.requests import SCHEDULED_ID_BYTES, Deliverable
from postroom.messaging.requests import DeadLetter as StoredLetter
from postroom.messaging.requests import Scheduled as StoredSchedule
from postroom.ranges.requests import DeleteRange


def dead_letter(letter: StoredLetter, codec: Packing) -> DeadLetter:
    """A dead letter, unpacked."""
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
    return DeadLetter(*told, value, entry.source, message.key, message.headers or {}, attempts)


def scheduled(stored: StoredSchedule, codec: Packing) -> Scheduled:
    """What waits for its time, unpacked."""
    id_, due = stored.id.hex(), Timestamp.from_bytes(stored.id[:8], "big")
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
        id_, due, message.key, None, value, message.headers or {}, message.transaction_id,
        message.source,
    )  # fmt: skip
    trial = message.trial
    return told if trial is None else told._replace(attempts=trial.attempts, last_error=trial.error)


def _unpacked(message: Deliverable, codec: Packing) -> Any:
    """The payload; as it is stored, if it cannot be unpacked: perhaps it is here for that."""
    try:
        return codec.decode(message.value, message.key)
    except WrongType:
        return message.value


def dead_letter_ids(given: Iterable[str]) -> list[bytes]:
    """Ids as they travel."""
    return _ids(given, "a dead letter", "dead_letters()")


def scheduled_ids(given: Iterable[str]) -> list[bytes]:
    """Ids as they travel."""
    found = _ids(given, "anything scheduled", "scheduled()")
    for each in found:
        if len(each) != SCHEDULED_ID_BYTES:
            raise ValueError(
                f"not the id of anything scheduled ({each.hex()!r}): use those of scheduled()"
            )
    return found


def _ids(given: Iterable[str], what: str, source: str) -> list[bytes]:
    if isinstance(given, str):
        raise TypeError(f"give a list of ids, as {source} tells them")
    try:
        return [bytes.fromhex(each) for each in given]
    except (ValueError, TypeError) as error:
        raise ValueError(f"not the id of {what} ({error}): use those of {source}") from None
