"""Messages of one inbox, which are sent, looked at, and postponed."""

from __future__ import annotations

from typing import Any

import postroom
import postroom.aio

KEY = b"inbox"


def send(db: postroom.Database, *values: Any, **options: Any) -> None:
    with db.begin() as tx:
        for value in values:
            tx.enqueue_message(KEY, value, **options)


def reap(db: postroom.Database, **options: Any) -> list[tuple[Any, int, str]]:
    """Reap the messages that are there, and leave them there."""
    tx = db.begin()
    found = [(each.value, each.attempts, each.last_error) for each in tx.reap_queue(KEY, **options)]
    tx.rollback()
    return found


def postpone(db: postroom.Database, most: int = 1, *given: Any, **options: Any) -> None:
    with db.begin() as tx:
        tx.postpone(
            tx.reap_queue(KEY, most, max_attempts=options.pop("of", None)), *given, **options
        )
