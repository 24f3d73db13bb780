"""Refused calls, which change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import postroom
from tests.client.stores import Store

MIB = 1024 * 1024


def refused(
    store: Store, call: Callable[[postroom.Database], Any], error: type[Exception], match: str
) -> None:
    """Check that ``call`` raises ``error``, and that not a byte in the store changes."""
    before = store.dump()
    with pytest.raises(error, match=match):
        call(store.db)
    store.advance(0)
    store.driver.settle()
    assert store.dump() == before


def in_transaction(call: Callable[[postroom.Transaction], Any]) -> Callable[..., Any]:
    def run(db: postroom.Database) -> None:
        with db.begin() as tx:
            tx.put(b"other", b"1")
            tx.enqueue_message(b"other", b"m")
            call(tx)

    return run
