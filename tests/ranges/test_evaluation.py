"""Reads of a request that see its own writes."""

from __future__ import annotations

from collections.abc import ItemsView
from random import Random  # noqa: TID251 (seeded)

from postroom.kv.cache import Cache
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.ranges.evaluation import Evaluation


def test_a_key_that_is_asked_for_once_is_as_the_requests_have_left_it_and_not_kept() -> None:
    engine = MemoryEngine(MemoryDisk())
    engine.write({b"stored": b"1", b"replaced": b"1", b"deleted": b"1"}, sync=True)
    cache = Cache(engine)
    ctx = Evaluation(cache, 1, 0)
    ctx.begin(1)
    ctx.writes[b"replaced"] = b"2"
    ctx.accept()
    ctx.begin(2)
    ctx.writes[b"deleted"] = None
    wanted = {b"stored": b"1", b"replaced": b"2", b"deleted": None, b"unknown": None}
    assert {key: ctx.get_once(key) for key in wanted} == wanted
    assert not any(cache.peek(key)[0] for key in wanted)
    cache.offer(b"stored", b"known here")
    assert ctx.get_once(b"stored") == b"known here"
    assert Evaluation(engine, 1, 0).get_once(b"stored") == b"1"


class _LookedThrough(dict[bytes, bytes | None]):
    """Writes that count how often all of them are looked through."""

    times = 0

    def items(self) -> ItemsView[bytes, bytes | None]:  # type: ignore[override]
        self.times += 1
        return super().items()


def test_a_request_that_asks_for_a_span_with_each_write_does_not_look_through_all() -> None:
    random = Random(1)
    engine = MemoryEngine(MemoryDisk())
    stored = {b"%03d" % number: b"stored" for number in range(0, 1000, 7)}
    engine.write(dict(stored), sync=True)
    ctx = Evaluation(engine, 1, 0)
    ctx.begin(1)
    expected: dict[bytes, bytes | None] = dict(stored)
    ctx.writes = writes = _LookedThrough()
    for number in range(3000):
        # Now and then many at once, as a request does that goes on with the next turn.
        for _ in range(100 if number % 1000 == 999 else 1):
            key = b"%03d" % random.randrange(1000)
            writes[key] = expected[key] = random.choice((None, b"%d" % number))
        lower = random.randrange(1000)
        span = b"%03d" % lower, b"%03d" % (lower + 5)
        found = [(k, v) for k, v in sorted(expected.items()) if span[0] <= k < span[1] and v]
        assert list(ctx.iterate(*span)) == found
        if number == 2000:
            ctx.begin_step()
            ctx.writes = writes = _LookedThrough()
    assert writes.times < 100
