"""Inboxes in the order of their keys: what is looked at follows from the limit."""

from __future__ import annotations

from tests.client.stores import Store
from tests.client.watched_engine import WatchedEngine

INBOXES = 3000


def test_a_page_of_inboxes_looks_at_no_others() -> None:
    store = Store()
    for first in range(0, INBOXES, 500):
        with store.db.begin() as tx:
            for number in range(first, first + 500):
                tx.enqueue_message(b"%04d" % number, b"m")
    engine: WatchedEngine = store.engine
    seen, start = list[bytes](), b""
    while True:
        before = engine.steps
        page = store.db.inboxes(start, limit=100, by_key=True, ready=True)
        assert engine.steps - before <= 110
        seen += [each.key for each in page]
        if len(page) < 100:
            break
        start = page[-1].key + b"\x00"
    assert seen == [b"%04d" % number for number in range(INBOXES)]
    store.db.close()
