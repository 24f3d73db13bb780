"""The order of inboxes in memory while it is built over several turns."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from postroom import limits
from postroom.kv import keys
from postroom.kv.cache import Cache
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.messaging.inbox_index import InboxOrder
from postroom.messaging.requests import MESSAGE_ID_BYTES, InboxIndexEntry
from postroom.ranges.bounds import Bounds
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.evaluation import View
from postroom.ranges.memory import Holders
from postroom.ranges.ports import Registry

INBOXES: Final = 4


def _mail(number: int, oldest: int) -> WriteSet:
    entry = InboxIndexEntry(1, oldest.to_bytes(MESSAGE_ID_BYTES, "big"))
    return {keys.mail_key(b"inbox/%d" % number): msgspec.msgpack.encode(entry)}


def test_an_order_that_is_dropped_while_it_is_built_follows_later_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large proposal drops it. The request that builds it goes on from the beginning."""
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 1)
    monkeypatch.setattr(limits, "COMPLETED_AT_ONCE_MAX", 2)
    engine, registry = MemoryEngine(MemoryDisk()), Registry()
    for number in range(INBOXES):
        engine.write(_mail(number, number + 1), sync=True)
    holders = Holders(lambda: 0.0, lambda _: None)
    order = InboxOrder(holders, Bounds(RangeDescriptor(1)))
    order.register(registry)
    view = View(Cache(engine))
    building = order.build(view)
    next(building)
    for hear in tuple(registry.on_written):
        hear(_mail(0, 1) | _mail(1, 2) | _mail(2, 3))
    next(building)
    moved = _mail(0, 100)
    engine.write(moved, sync=True)
    for hear in tuple(registry.on_written):
        hear(moved)
    for _ in building:
        view.steps = 0
    entries = order.following(b"", INBOXES, ready=False)
    assert [keys.user_key(entry[MESSAGE_ID_BYTES:]) for entry in entries] == [
        b"inbox/1", b"inbox/2", b"inbox/3", b"inbox/0",
    ]  # fmt: skip
