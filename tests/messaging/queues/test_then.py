"""Queues are listed as of a timestamp without reading all that else lies under the same keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import postroom
from postroom.ranges.evaluation import View

VERSIONS = 500
OTHERS = 20


def test_listing_the_past_leaps_over_versions_and_other_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    iterate, read = View.iterate, 0

    def counting(self: View, *given: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        nonlocal read
        for pair in iterate(self, *given, **options):
            read += 1
            yield pair

    with postroom.open(":memory:") as db:
        q, other = db.create_queue("q"), db.create_queue("other")
        with db.begin() as tx:
            for key in (b"a", b"b", b"c"):
                tx.enqueue("q", key, key=key)
            for _ in range(OTHERS):
                tx.enqueue("other", b"", key=b"b")
        for number in range(VERSIONS):
            db.put(b"b", b"%d" % number)
        at = db.now()
        assert [message.payload for message in q.scan(at=at)] == [b"a", b"b", b"c"]
        monkeypatch.setattr(View, "iterate", counting)
        assert [message.payload for message in q.scan(at=at)] == [b"a", b"b", b"c"]
        assert read < 100, "versions and bodies of others are leapt over"
        assert len(list(other.scan(at=at))) == OTHERS
