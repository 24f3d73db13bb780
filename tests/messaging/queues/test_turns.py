"""The cost of taking a ready message, in lines of code that are run.

It does not grow with the number of groups, kinds or held groups. The memory beside the messages is
bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from postroom.messaging.queues import ready, rotation
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.consumers import Wish
from postroom.messaging.queues.ready import ReadyCache
from postroom.messaging.queues.records import Entry
from tests.messaging.queues.harness import Queues

COUNTED = {rotation.__file__, ready.__file__}
FEW, MANY = 300, 3000
TAKEN = 40


def steps(function: Callable[[], object]) -> int:
    """Return how many lines of what is counted run."""
    count = 0

    def on_line(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return on_line

    def on_call(frame: FrameType, _: str, __: Any) -> Any:
        return on_line if frame.f_code.co_filename in COUNTED else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


class Filled:
    """A cache, and what was offered to it."""

    def __init__(self, *, ordered: bool = False, size: int = 100_000) -> None:
        self.left_out: list[bytes] = []
        self.cache = ReadyCache(
            size, ordered=ordered, on_left_out=lambda key, _: self.left_out.append(key)
        )
        self.cache.nothing_is_stored()
        self._number = 0

    def offer(self, group: str = "", kind: str = "", key: bytes = b"k") -> bytes:
        self._number += 1
        seq = self._number.to_bytes(12, "big")
        placed = group.encode() + b"\0" + seq
        self.cache.offer(placed, Entry(key, kind, seq, seq, 1, 1, group=group))
        return placed

    def take(self, wants: Wish | None = None, may: Any = None) -> Entry | None:
        placed = self.cache.take(wants, may)
        return None if placed is None else placed[1]


def wish(**selection: Any) -> Wish:
    return Wish(ClaimSelection(**selection), lambda _: None)


def many_held(number: int) -> Callable[[], object]:
    filled = Filled(ordered=True)
    for each in range(number):
        filled.offer(f"held {each}")
    for _ in range(number):
        filled.take(None, lambda name, _: not name.startswith("held"))
    for each in range(TAKEN):
        filled.offer(f"free {each}")

    def take() -> None:
        for _ in range(TAKEN):
            taken = filled.take(None, lambda name, _: name.startswith("free"))
            assert taken is not None

    return take


def a_kind_among_groups(number: int) -> Callable[[], object]:
    filled = Filled()
    for each in range(number):
        filled.offer(f"group {each}", "a")
    wants = wish(kinds=("b",))
    assert filled.take(wants) is None
    for each in range(TAKEN):
        filled.offer(f"group {number - 1 - each}", "b")

    def take() -> None:
        for _ in range(TAKEN):
            taken = filled.take(wants)
            assert taken is not None
            assert taken.kind == "b"

    return take


def any_of_many_kinds(number: int) -> Callable[[], object]:
    filled = Filled()
    for each in range(number):
        filled.offer(kind=str(each))
    filled.take()

    def take() -> None:
        for each in range(TAKEN):
            taken = filled.take()
            assert taken is not None
            assert taken.kind == str(each + 1)

    return take


def two_of_many_kinds(number: int) -> Callable[[], object]:
    filled = Filled()
    for each in range(number):
        filled.offer(kind=str(each))
    wants = wish(kinds=("1", "2"))
    filled.take(wants)
    for each in range(TAKEN):
        filled.offer(kind=str(1 + each % 2))

    def take() -> None:
        for _ in range(TAKEN):
            assert filled.take(wants) is not None

    return take


def a_range_of_keys(number: int) -> Callable[[], object]:
    filled = Filled()
    for each in range(number):
        filled.offer(f"group {each}")
    wants = wish(start=b"x")
    assert filled.take(wants) is None
    for each in range(TAKEN):
        filled.offer(f"group {number - 1 - each}", key=b"y")

    def take() -> None:
        for _ in range(TAKEN):
            taken = filled.take(wants)
            assert taken is not None
            assert taken.key == b"y"

    return take


def heads_of_ordered_groups(number: int) -> Callable[[], object]:
    filled = Filled(ordered=True)
    for each in range(number):
        filled.offer(f"group {each}", "a")
    wants = wish(kinds=("b",))
    assert filled.take(wants) is None
    for each in range(TAKEN):
        filled.offer(f"other {each}", "b")

    def take() -> None:
        for _ in range(TAKEN):
            assert filled.take(wants) is not None
        assert filled.take(wants) is None

    return take


def to_a_full_cache(number: int) -> Callable[[], object]:
    filled = Filled(size=number + 1)
    for each in range(number):
        filled.offer(f"group {each}")
    filled.offer("group 0")

    def offer() -> None:
        for each in range(TAKEN):
            filled.offer(f"group {each}")

    return offer


CASES = [
    many_held, a_kind_among_groups, any_of_many_kinds, two_of_many_kinds, a_range_of_keys,
    heads_of_ordered_groups, to_a_full_cache,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_claim_costs_the_same_among_ten_times_as_many_messages(
    case: Callable[[int], Any],
) -> None:
    few, many = steps(case(FEW)), steps(case(MANY))
    assert many <= 1.5 * few + 20 * TAKEN, f"{few} steps among {FEW}, {many} among {MANY}"


def test_an_ordered_group_goes_on_when_its_head_is_gone() -> None:
    filled = Filled(ordered=True)
    first = filled.offer("g", "a")
    filled.offer("g", "b")
    wants = wish(kinds=("b",))
    assert filled.take(wants) is None
    filled.cache.discard(first)
    taken = filled.take(wants)
    assert taken is not None
    assert taken.kind == "b"


def test_all_that_is_wanted_is_found_whoever_takes_what() -> None:
    """Wishes of each sort, by turns, until nothing is left."""
    filled = Filled()
    for number in range(200):
        filled.offer(f"g{number % 7}", "abc"[number % 3], b"%d" % (number % 10))
    takers: list[Wish | None] = [
        wish(kinds=("a",)), wish(kinds=("a", "b")), wish(start=b"5"), wish(kinds=("c",), end=b"3"),
        None,
    ]  # fmt: skip
    seen: set[bytes] = set()
    for wants in _around(takers, 200):
        taken = filled.take(wants)
        if taken is None:
            taken = filled.take(None)
        elif wants is not None:
            assert wants.takes(taken)
        assert taken is not None
        assert taken.id not in seen
        seen.add(taken.id)
    assert filled.take(None) is None
    assert not len(filled.cache)
    assert not filled.cache._groups


def _around(takers: list[Wish | None], number: int) -> Iterator[Wish | None]:
    for each in range(number):
        yield takers[each % len(takers)]


def test_messages_that_are_never_taken_leave_no_memory_behind() -> None:
    """Messages of ever new groups and kinds that end otherwise, while others have wishes."""
    filled = Filled()
    wishes = [None, wish(kinds=("b", "c")), wish(start=b"a")]
    for wants in wishes:
        filled.take(wants)
    for number in range(5000):
        filled.cache.discard(filled.offer(f"g{number}", "b", b"k"))
        filled.cache.discard(filled.offer("same", f"kind {number}", b"k"))
    cache = filled.cache
    assert not cache._groups
    assert not cache._alive
    assert not cache._hungry
    assert not cache._more
    for order in cache._rotations.values():
        held = len(order.line) + len(order._untested) + len(order._in_line)
        assert held <= 10 * rotation.LEFTOVERS_MIN


def test_one_kind_that_nobody_takes_keeps_no_more_than_there_is() -> None:
    filled = Filled()
    filled.offer("g", "unwanted")
    for _ in range(5000):
        filled.cache.discard(filled.offer("g", "unwanted"))
    (group,) = filled.cache._groups.values()
    assert sum(map(len, group._lanes.values())) <= 2 * group.count + rotation.LEFTOVERS_MIN + 1


@pytest.mark.parametrize(
    "settings",
    [{"max_concurrency": 1}, {"group_max_concurrency": 1}, {"order": "group"}, {"max_rate": 1.0}],
)
def test_a_selective_consumer_gets_all_its_messages_despite_limits(settings: Any) -> None:
    """None of them is in memory, which is full of what nobody takes; they are looked for."""
    queues = Queues()
    queues.create(cache_size=10, ack_wait=1000.0, **settings)
    for number in range(30):
        queues.enqueue(b"unwanted", kind="u", group=f"a{number}", priority=-100)
    queues.enqueue(b"1", b"2", b"3", kind="w", group="z")
    got = []
    wanted = ClaimSelection(kinds=("w",))
    for _ in range(3):
        running = queues.start(queues.claim_request(9, wait=True, selection=wanted))
        queues.pass_time(5)
        assert running.done, got
        messages = running.result().messages
        got += [each.payload for each in messages]
        queues.acknowledge(*messages)
    assert got == [b"1", b"2", b"3"]


@pytest.mark.parametrize("ends", ["acknowledged", "cancelled"])
def test_a_consumer_of_a_message_behind_a_head_does_not_hold_up_the_group(ends: str) -> None:
    """The head of an ordered group is not in memory, and not what somebody waits for."""
    queues = Queues()
    queues.create(cache_size=10, ack_wait=1000.0, order="group", poller_interval=10_000.0)
    for number in range(30):
        queues.enqueue(b"unwanted", kind="u", group=f"a{number}")
    queues.enqueue(b"head", kind="h", group="z", id=b"head")
    queues.enqueue(b"behind", kind="w", group="z")
    wanted = ClaimSelection(kinds=("w",))
    waiting = queues.start(queues.claim_request(9, wait=True, selection=wanted))
    queues.pass_time(5)
    assert not waiting.done
    if ends == "acknowledged":
        heads = queues.claim(9, selection=ClaimSelection(kinds=("h",)))
        assert [each.payload for each in heads] == [b"head"]
        queues.acknowledge(*heads)
    else:
        queues.cancel(b"head")
    queues.pass_time(5)
    assert waiting.done
    assert [each.payload for each in waiting.result().messages] == [b"behind"]


def test_a_consumer_of_a_message_behind_a_head_leaves_the_head_to_others() -> None:
    queues = Queues()
    queues.create(cache_size=10, ack_wait=1000.0, order="group", poller_interval=10_000.0)
    for number in range(30):
        queues.enqueue(b"unwanted", kind="u", group=f"a{number}")
    queues.enqueue(b"head", kind="h", group="z")
    queues.enqueue(b"behind", kind="w", group="z")
    wanted = ClaimSelection(kinds=("w",))
    waiting = queues.start(queues.claim_request(9, wait=True, selection=wanted))
    queues.pass_time(5)
    got = []
    for _ in range(10):
        messages = queues.claim(9)
        got += [each.payload for each in messages]
        queues.acknowledge(*messages)
    assert sorted(got) == [b"head", *[b"unwanted"] * 30]
    assert [each.payload for each in waiting.result().messages] == [b"behind"]


def test_a_consumer_of_a_kind_gets_its_message_once_the_head_is_cancelled() -> None:
    """All of it in memory."""
    queues = Queues()
    queues.create(order="group", poller_interval=10_000.0)
    queues.enqueue(b"head", kind="h", group="z", id=b"head")
    queues.enqueue(b"behind", kind="w", group="z")
    wanted = ClaimSelection(kinds=("w",))
    waiting = queues.start(queues.claim_request(9, wait=True, selection=wanted))
    queues.pass_time(5)
    queues.cancel(b"head")
    queues.pass_time(5)
    assert waiting.done
    assert [each.payload for each in waiting.result().messages] == [b"behind"]


@pytest.mark.parametrize("kinds", [("h",), None])
def test_a_consumer_of_a_kind_gets_its_message_once_the_head_is_done(kinds: Any) -> None:
    queues = Queues()
    queues.create(order="group", poller_interval=10_000.0)
    queues.enqueue(b"head", kind="h", group="z")
    queues.enqueue(b"behind", kind="w", group="z")
    wanted = ClaimSelection(kinds=("w",))
    waiting = queues.start(queues.claim_request(9, wait=True, selection=wanted))
    queues.pass_time(5)
    (head,) = queues.claim(selection=ClaimSelection(kinds=kinds))
    queues.pass_time(5)
    assert not waiting.done
    queues.acknowledge(head)
    queues.pass_time(5)
    assert waiting.done
    assert [each.payload for each in waiting.result().messages] == [b"behind"]


def test_groups_that_are_held_up_leave_room_for_others() -> None:
    """They have more than there is room for, and memory was forgotten and read again."""
    queues = Queues()
    queues.create(cache_size=160, group_max_concurrency=1, ack_wait=3600.0, poller_interval=10.0)
    for number in range(30):
        queues.enqueue(*[b"flood"] * 100, group=f"a{number:02}")
    held = [message for _ in range(8) for message in queues.claim(9)]
    assert len(held) == 30
    waiting = queues.start(queues.claim_request(9, wait=True))
    queues.pass_time(15)
    queues.enqueue(b"other", group="z")
    queues.pass_time(1)
    assert waiting.done
    assert [each.payload for each in waiting.result().messages] == [b"other"]
    assert len(queues.manager().ready) <= 160
    queues.acknowledge(*held)
    assert len([message for _ in range(8) for message in queues.claim(9)]) == 30
