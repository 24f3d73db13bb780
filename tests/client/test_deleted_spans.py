"""Spans of deleted keys: scans jump over them, and the store has them compacted by itself."""

from __future__ import annotations

import pytest

from postroom.client import sync as blocking
from postroom.kv import keys
from postroom.kv.background import SETTLE_SECONDS
from postroom.kv.gathering import Gathering
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from tests.client.storage_store import StorageStore
from tests.client.stores import Store

KEYS = 10_000
COLLECTED_EVERY_SECONDS = 10.0


def test_a_second_scan_does_not_step_over_deleted_keys(store: Store) -> None:
    _delete_many(store.db)
    store.db.put(b"last", b"value")
    steps = []
    for reverse in (False, True):
        for _ in range(2):
            before = store.engine.steps
            found = list(store.db.scan(b"key/", None, limit=2, reverse=reverse))
            assert found == [(b"last", b"value")]
            steps.append(store.engine.steps - before)
    assert steps[0] >= KEYS
    assert max(steps[1:]) < KEYS // 20


def test_a_span_of_collected_keys_is_compacted_while_the_store_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compacted: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(Gathering, "compact", lambda _, *span: compacted.append(span))
    resting = StorageStore(gc_ttl_seconds=1, gc_interval_seconds=COLLECTED_EVERY_SECONDS)
    _delete_many(resting.db)
    assert not compacted
    resting.driver.advance(RECORD_SECONDS + 2 * COLLECTED_EVERY_SECONDS + SETTLE_SECONDS)
    resting.db.close()
    lower, upper = compacted[0][0], compacted[-1][1]
    assert lower <= keys.head_key(b"key/%05d" % (KEYS // 20))
    assert upper >= keys.head_key(b"key/%05d" % (KEYS - KEYS // 20))


def _delete_many(db: blocking.CoreDatabase) -> None:
    for first in range(0, KEYS, 1000):
        with db.begin() as tx:
            for number in range(first, first + 1000):
                tx.put(b"key/%05d" % number, b"value")
    assert db.delete_range(b"key/", b"key0") == KEYS
