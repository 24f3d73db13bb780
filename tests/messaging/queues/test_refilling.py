"""Reading of stored messages into memory: small groups are read in one walk, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom.kv.memory import MemoryEngine
from postroom.messaging.queues.refilling import STEPS_BEFORE_SEEK
from tests.messaging.queues.harness import Queues

GROUPS = 200


def _counted(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> int:
    """Return how often ``action`` iterates over a span of the engine."""
    counted, iterate = [], MemoryEngine.iterate

    def counting(self: MemoryEngine, *span: bytes, **options: Any) -> Any:
        counted.append(span)
        return iterate(self, *span, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryEngine, "iterate", counting)
        action()
    return len(counted)


def test_many_small_groups_are_read_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = Queues()
    queues.create(order="group", batch_size=GROUPS)
    for number in range(GROUPS):
        queues.enqueue(b"%d" % number, group=f"group {number:03d}")
    queues.store.restart()
    found: list[bytes] = []
    assert _counted(monkeypatch, lambda: found.extend(queues.payloads(GROUPS))) < GROUPS // 10
    assert found == [b"%d" % number for number in range(GROUPS)]


@pytest.mark.parametrize("size", [1, STEPS_BEFORE_SEEK, STEPS_BEFORE_SEEK + 1, 40])
def test_groups_of_any_size_are_read_whole(size: int) -> None:
    queues = Queues()
    queues.create(order="group", cache_size=64)
    for group in "abcdef":
        queues.enqueue(*[b"%s%02d" % (group.encode(), each) for each in range(size)], group=group)
    queues.store.restart()
    found: list[bytes] = []
    while messages := queues.claim(3):
        found += [each.payload for each in messages]
        queues.acknowledge(*messages)
    assert sorted(found) == [
        b"%s%02d" % (g, n) for g in (b"a", b"b", b"c", b"d", b"e", b"f") for n in range(size)
    ]
    for group in b"abcdef":
        of_group = [each for each in found if each[0] == group]
        assert of_group == sorted(of_group)
