"""Short forms for tests of messages and deferred updates."""

from __future__ import annotations

import datetime
from typing import Any

import postroom
import postroom.aio

BIG = 2**63 - 1


def send(db: postroom.Database, key: bytes, *values: bytes, **options: Any) -> None:
    with db.begin() as tx:
        for value in values:
            tx.enqueue_message(key, value, **options)


def update(db: postroom.Database, *requests: Any, **options: Any) -> None:
    with db.begin() as tx:
        for request in requests:
            tx.enqueue_update(request, **options)


def waiting(db: postroom.Database, key: bytes) -> list[bytes]:
    return [message.value for message in db.peek(key, 10_000)]


def reap(db: postroom.Database, key: bytes, *args: Any, **options: Any) -> list[bytes]:
    with db.begin() as tx:
        return [message.value for message in tx.reap_queue(key, *args, **options)]


def aware(seconds: float) -> datetime.datetime:
    start = datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
    return start.astimezone(datetime.timezone(datetime.timedelta(hours=5))) + datetime.timedelta(
        seconds=seconds
    )
