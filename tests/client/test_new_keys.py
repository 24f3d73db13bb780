"""Writes of keys that are new, or were there: whatever the store knows of them without looking."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.kv import head_filter, keys
from postroom.kv.memory import MemoryEngine
from tests.client.storage_store import StorageStore

KEYS = 60
TRANSACTIONS = 250


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [head_filter.SMALL_SHARE, 1 << 23])
def test_random_writes_leave_what_a_dictionary_has_and_keep_what_was_there_before(
    seed: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a share of almost nothing, the second part of the filter is used."""
    monkeypatch.setattr(head_filter, "SMALL_SHARE", share)
    chance, store = Random(seed), StorageStore()
    expected: dict[bytes, bytes] = {}
    past: list[tuple[int, dict[bytes, bytes]]] = []
    for number in range(TRANSACTIONS):
        _write(store.db, chance, expected, number)
        if not number % 10:
            past.append((store.db.now(), dict(expected)))
        if not number % 7:
            store.storage.applied.flush()
            store.node.root.replica.cache.clear()  # it would know all keys
    assert len(store.storage.applied._heads._large) > 1 or share == head_filter.SMALL_SHARE
    for at, then in past:
        assert dict(store.db.scan(at=at)) == then
    for key in map(_key, range(KEYS)):
        assert store.db.get(key) == expected.get(key)
    store.db.close()
    again = StorageStore(store.disk)
    _write(again.db, chance, expected, TRANSACTIONS)
    assert dict(again.db.scan()) == expected
    again.db.close()


def test_puts_of_new_keys_ask_the_engine_for_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = StorageStore(), list[bytes]()
    get = MemoryEngine.get

    def counted(self: MemoryEngine, key: bytes, /) -> bytes | None:
        asked.append(key)
        return get(self, key)

    monkeypatch.setattr(MemoryEngine, "get", counted)
    for number in range(1000):
        store.db.put(b"new/%04d" % number, b"value")
    store.db.close()
    assert sum(map(keys.is_head, (key for key in asked if key[:1] == keys.DATA))) < 100


def _write(db: Any, chance: Random, expected: dict[bytes, bytes], number: int) -> None:
    with db.begin() as tx:
        for _ in range(chance.randrange(1, 6)):
            key = _key(chance.randrange(KEYS))
            match chance.randrange(4):
                case 0:
                    tx.delete(key)
                    expected.pop(key, None)
                case 1 if len(expected.get(key, bytes(8))) == 8:
                    tx.increment(key, number)
                    before = int.from_bytes(expected.get(key, b""), "big")
                    expected[key] = (before + number).to_bytes(8, "big")
                case _:
                    tx.put(key, b"%d" % number)
                    expected[key] = b"%d" % number


def _key(number: int) -> bytes:
    return b"%03d" % number
