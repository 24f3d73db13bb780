"""A worker over many inboxes: what it reads for a message does not grow with their number."""

from __future__ import annotations

import pytest

import postroom
import postroom.testing
from postroom.kv.memory import MemoryEngine
from postroom.server import embedded
from tests.client.watched_engine import WatchedEngine


def test_a_worker_reads_as_much_for_a_message_of_many_inboxes_as_of_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines: list[WatchedEngine] = []

    def watched() -> WatchedEngine:
        engines.append(WatchedEngine(MemoryEngine()))
        return engines[-1]

    monkeypatch.setattr(embedded, "MemoryEngine", watched)
    costs = []
    for inboxes in (300, 3000):
        with postroom.testing.Store() as store:
            worker = postroom.Worker(store.db)

            @worker.inbox(b"")
            def work(message: postroom.Message, tx: postroom.Transaction) -> None:
                tx.delete(b"work of " + message.key)

            with store.db.begin() as tx:
                for number in range(inboxes):
                    tx.enqueue_message(b"%06d" % number, b"m")
            engine = engines[-1]
            before = engine.steps + engine.gets
            assert worker.run_until_idle() == inboxes
            costs.append((engine.steps + engine.gets - before) / inboxes)
    assert costs[1] <= costs[0] + 0.5
