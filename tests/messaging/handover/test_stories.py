"""Messages between ranges come once, in order and completely, and each broken rule is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pytest

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.messaging.handover import marks, outgoing, parts, receiving
from postroom.messaging.handover.marks import MarkedSpan, Marks
from postroom.messaging.handover.outgoing import Outgoing
from postroom.messaging.handover.receiving import HandedOver
from postroom.messaging.handover.requests import HandOver
from postroom.messaging.handover.sending import SendingService
from tests.messaging.handover.several_ranges import Ranges, Story

Patch: TypeAlias = pytest.MonkeyPatch
STEPS: Final = 120
SEEDS_TRIED: Final = 200


@pytest.mark.parametrize("ranges", [2, 3])
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_messages_between_ranges_come_once_and_in_order(first: int, ranges: int) -> None:
    for seed in range(first, first + 10):
        Story(seed, ranges).play(STEPS)


# --- broken rules ---------------------------------------------------------------------------------


def no_marks(patch: Patch) -> None:
    patch.setattr(marks, "raised", lambda known, *_: known)


def marks_are_forgotten_by_the_right_half(patch: Patch) -> None:
    patch.setattr(Ranges, "marks_for_right", lambda *_: [])


def _one_of(choose: Callable[[list[bytes]], bytes]) -> Callable[[Marks, Marks], Marks]:
    """Return how marks are joined if one of them counts for all keys."""

    def joined(left: Marks, right: Marks) -> Marks:
        found = [piece.mark for piece in (*left, *right)]
        return [MarkedSpan(b"", None, choose(found))] if found else []

    return joined


def a_range_that_takes_over_keeps_the_greatest_mark(patch: Patch) -> None:
    patch.setattr(marks, "joined", _one_of(max))


def a_range_that_takes_over_keeps_the_least_mark(patch: Patch) -> None:
    patch.setattr(marks, "joined", _one_of(min))


def a_batch_marks_the_whole_range(patch: Patch) -> None:
    raised = marks.raised
    patch.setattr(
        marks, "raised", lambda known, start, end, position: raised(known, b"", None, position)
    )


def a_batch_need_not_begin_with_the_oldest(patch: Patch) -> None:
    whole = SendingService._batch

    def without_the_first(self: SendingService, destination: Any) -> HandOver | None:
        batch = whole(self, destination)
        if batch is None or len(batch.messages) < 2:
            return batch
        return HandOver(batch.channel, batch.start, batch.end, batch.messages[1:])

    patch.setattr(SendingService, "_batch", without_the_first)


def positions_step_back(patch: Patch) -> None:
    def earlier(stamp: bytes, id_: bytes) -> bytes:
        when = int.from_bytes(stamp, "big") - (id_[-1] % 2) * (3000 << 16)
        return keys.u64(when) + id_

    patch.setattr(outgoing, "position_of", earlier)


def a_range_hands_over_to_itself_without_marks(patch: Patch) -> None:
    with_marks = HandedOver.hand_over

    def without_marks(self: HandedOver, ctx: Any, request: HandOver) -> Marks:
        if request.channel.sender == self._range_id:
            ctx.writes[marks.record_key(self._range_id, request.channel)] = None
        return with_marks(self, ctx, request)

    patch.setattr(HandedOver, "hand_over", without_marks)


def a_message_passes_outgoing_ones_for_its_key(patch: Patch) -> None:
    def goes_out(self: Outgoing, key: bytes) -> bool:
        return not self._bounds.contains(key)

    patch.setattr(Outgoing, "goes_out", goes_out)


def an_update_leaves_with_its_first_part(patch: Patch) -> None:
    patch.setattr(SendingService, "_is_taken_by_all", lambda *_: True)


def a_range_takes_all_parts_again_if_one_is_new(patch: Patch) -> None:
    def whole(update: Any, known: Marks, position: bytes) -> Iterator[Any]:
        yield from [update] * any(True for _ in parts.new_parts(update, known, position))

    patch.setattr(receiving, "new_parts", whole)


def further_parts_count_as_received(patch: Patch) -> None:
    patch.setattr(receiving, "first_key", lambda _: b"")
    patch.setattr(receiving, "key_of", lambda _: b"")
    patch.setattr(HandOver, "further", property(lambda _: ()))


def an_update_passes_outgoing_parts_for_its_keys(patch: Patch) -> None:
    def goes_out(self: Outgoing, _: object, update: Any, *, is_received: bool = False) -> bool:
        return not self._owns(update)

    patch.setattr(Outgoing, "update_goes_out", goes_out)


BROKEN: Final = [
    no_marks,
    marks_are_forgotten_by_the_right_half,
    a_range_that_takes_over_keeps_the_greatest_mark,
    a_range_that_takes_over_keeps_the_least_mark,
    a_batch_marks_the_whole_range,
    a_batch_need_not_begin_with_the_oldest,
    positions_step_back,
    a_range_hands_over_to_itself_without_marks,
    a_message_passes_outgoing_ones_for_its_key,
    an_update_leaves_with_its_first_part,
    a_range_takes_all_parts_again_if_one_is_new,
    further_parts_count_as_received,
    an_update_passes_outgoing_parts_for_its_keys,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda each: each.__name__)
def test_a_broken_rule_is_found(broken: Callable[[Patch], None], monkeypatch: Patch) -> None:
    broken(monkeypatch)
    for seed in range(SEEDS_TRIED):
        try:
            Story(seed, 2 + seed % 2).play(STEPS)
        except (AssertionError, StoreCorrupted):
            return
    pytest.fail(f"{SEEDS_TRIED} stories went well")
