"""One message for the queue that tests of queues call "q"."""

from __future__ import annotations

from typing import Any

import postroom
from tests.client.stores import Store


def enqueue(store: Store, payload: bytes = b"x", **options: Any) -> postroom.EnqueueHandle:
    """Enqueue one message, in a transaction of its own."""
    with store.db.begin() as tx:
        return tx.enqueue("q", payload, **options)
