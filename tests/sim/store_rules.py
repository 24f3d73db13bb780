"""The rules for all ranges of a store together, at one moment.

* **Spans**: each key has one owner, and nothing lies outside of what the owners contain.
* **In transit**: of each channel, what was received and is still stored by its sender is known by a
  mark. In all, as much was received as was handed over, and is in transit.
* **Once**: no message, and no update, is in two places, but for those in transit.
* **Order**: the messages of a sender to a key arrive in the order in which they were sent.
* **Delivered**: what was delivered is in inboxes, or was reaped, in whatever range.
* **Slots**: none is lost, and no more messages are leased (:mod:`.slot_rules`).
* **Homes**: a message of a queue lies in one place, and its id leads there (:mod:`.home_rules`).

They hold for what an embedded store reads, and in a cluster when nothing is under way any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from postroom.client.routing.merges import summed
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.kv.memory import SortedMap
from postroom.messaging.handover.channels import Channel, lane_of
from postroom.messaging.handover.marks import mark_of
from postroom.messaging.handover.outgoing import key_of
from postroom.messaging.requests import Deliverable
from tests.messaging.queues.division import check_copies
from tests.sim import checkers
from tests.sim.checkers import Content, engine_spans, ranges_on, read_content, require
from tests.sim.home_rules import check_homes
from tests.sim.slot_rules import check_slots


def check_disk(disk: SortedMap) -> Content:
    """Check each range on a disk that has all of them; return what they hold together.

    One range may have come farther than another one, if opening was broken off.
    """
    contents = contents_of(disk)
    for content in contents:
        check_copies(disk, content.descriptor.range_id)
        for checker in checkers.CHECKERS:
            checker(content)
    return joined(contents)


def contents_of(disk: Reader) -> list[Content]:
    """Return what a disk, or a node, holds of each range."""
    return [read_content(disk, range_id) for range_id in ranges_on(disk)]


def check_together(contents: Sequence[Content]) -> Content:
    """Check all ranges at one moment; return what they hold together."""
    together = joined(contents)
    for checker in CHECKERS:
        checker(contents)
    checkers.check_once(together)
    return together


def joined(contents: Sequence[Content]) -> Content:
    """Return what several ranges hold, as if they were one."""
    if len(contents) == 1:
        return contents[0]
    together = Content()
    together.counters = summed(each.counters for each in contents)
    for each in contents:
        for mine, its in (
            (together.messages, each.messages), (together.updates, each.updates),
            (together.inboxes, each.inboxes), (together.reaped, each.reaped),
            (together.mail, each.mail), (together.holds, each.holds),
            (together.versions, each.versions), (together.records, each.records),
            (together.prepared, each.prepared), (together.unresolved, each.unresolved),
        ):  # fmt: skip
            mine.update(its)  # type: ignore[arg-type]
        together.outgoing.update(each.outgoing)
        together.dead_messages += each.dead_messages
        together.dead_updates += each.dead_updates
        together.ceiling = max(together.ceiling, each.ceiling)
        together.collected = max(together.collected, each.collected)
        together.newest = max(together.newest, each.newest)
    return together


# --- the checkers ---------------------------------------------------------------------------------


def check_spans(contents: Sequence[Content]) -> None:
    """Check that the ranges contain each key once."""
    every = sorted((each.descriptor for each in contents), key=lambda each: each.start)
    ends = [b"", *(each.end for each in every)]
    starts = [*(each.start for each in every), None]
    require(ends == starts, f"the ranges are {every}")


def check_nothing_else(disk: SortedMap, contents: Iterable[Content]) -> None:
    """Check that a disk has no key that belongs to none of these ranges."""
    at = keys.RANGE
    for lower, upper in sorted(span for each in contents for span in engine_spans(each.descriptor)):
        left = next((raw for raw, _ in disk.iterate(at, lower)), None) if at < lower else None
        require(left is None, f"a key of no range is left: {left!r}")
        at = max(at, upper)


def check_transit(contents: Sequence[Content]) -> None:
    """Check that what was received, and not handed, is what the marks say."""
    known = Counter[Channel]()
    for sender in contents:
        for name, entry in sender.outgoing.items():
            key, are_updates = key_of(entry), not isinstance(entry, Deliverable)
            lane = 0 if are_updates else lane_of(key)
            channel = Channel(sender.descriptor.range_id, are_updates, lane)
            receiver = _owner(contents, key)
            known[channel] += name[1:] <= mark_of(receiver.marks.get(channel, []), key)
    counters = summed(each.counters for each in contents)
    in_transit = counters.received - counters.handed
    require(
        in_transit == sum(known.values()), f"{in_transit} are in transit, the marks know {known}"
    )


def check_arrivals(contents: Sequence[Content]) -> None:
    """Check that what is handed over again is known, and that nothing passes what is outgoing."""
    for sender in contents:
        for name, entry in sender.outgoing.items():
            if not isinstance(entry, Deliverable):
                continue
            id_ = name[-20:]
            receiver = _owner(contents, entry.key)
            channel = Channel(sender.descriptor.range_id, False, lane_of(entry.key))
            is_known = name[1:] <= mark_of(receiver.marks.get(channel, []), entry.key)
            here = {
                *receiver.inboxes.get(entry.key, ()),
                *(each for _, each, _ in receiver.reaped.get(entry.key, ())),
            }
            require(is_known or id_ not in here, f"{id_.hex()} has arrived, and no mark says so")


def check_delivered(contents: Sequence[Content]) -> None:
    """Check that what was delivered is in inboxes, or was reaped."""
    counters = summed(each.counters for each in contents)
    inside = sum(len(inbox) for each in contents for inbox in each.inboxes.values())
    require(
        counters.delivered == counters.reaped + inside,
        f"{inside} are in inboxes, the counters say {counters}",
    )


def _owner(contents: Sequence[Content], key: bytes) -> Content:
    for each in contents:
        descriptor = each.descriptor
        if descriptor.start <= key and (descriptor.end is None or key < descriptor.end):
            return each
    raise checkers.Broken(f"nobody owns {key!r}")


CHECKERS: Final = (
    check_spans, check_transit, check_arrivals, check_delivered, check_homes,
    check_slots,
)  # fmt: skip
