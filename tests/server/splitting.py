"""Splits of the ranges of a node that is driven by hand."""

from __future__ import annotations

from typing import Any

from postroom.errors import Invalid
from postroom.messaging.requests import Counters, ReadCounters
from postroom.ranges.bounds import WrongRange
from postroom.ranges.listing import RangeInfo
from postroom.ranges.split.requests import AwaitSplit, NewRangeId, PrepareSplit
from postroom.server.hosted_range import HostedRange
from tests.client.stores import Store
from tests.messaging.one_range import Asked


def ask(store: Store, request: Any) -> Any:
    """Return the answer of the node, or raise its error."""
    call = Asked(request)
    store.node.replicas.submit(call)
    store.driver.settle()
    for _ in range(1000):
        if call.answers:
            break
        store.advance(0.01)
    result, error = call.answers[0]
    if error is not None:
        raise error
    return result


def upkeep(store: Store, hosted: HostedRange, request: Any) -> Any:
    """Return the answer of a range to a request of a service."""
    call = Asked(request, urgent=False)
    hosted.replica.submit(call)
    store.advance(0.01)
    result, error = call.answers[0]
    if error is not None:
        raise error
    return result


def refuse(*_: Any) -> None:
    """Refuse a split, in place of the check whether a range can be divided."""
    raise Invalid("the range has something that cannot be divided")


def new_id(store: Store) -> int:
    """Return the id of a range that is to come."""
    range_id: int = ask(store, NewRangeId())
    return range_id


def prepare(store: Store, key: bytes) -> int:
    """Prepare a split; return the id of the right half."""
    range_id = new_id(store)
    ask(store, PrepareSplit(key, range_id))
    return range_id


def split(store: Store, key: bytes) -> HostedRange:
    """Split at a key; return the right half."""
    range_id = prepare(store, key)
    while True:
        try:
            made: RangeInfo = ask(store, AwaitSplit(key))
        except WrongRange:
            continue
        assert (made.id, made.start) == (range_id, key)
        return hosted(store, range_id)


def hosted(store: Store, range_id: int) -> HostedRange:
    """Return a range of the node."""
    return store.node.replicas.hosted[range_id]


def spans(store: Store) -> list[tuple[int, bytes, bytes | None]]:
    """Return the ranges of the node, in the order of their keys."""
    found = [each.replica.bounds.descriptor for each in store.node.replicas.hosted.values()]
    return sorted(
        ((each.range_id, each.start, each.end) for each in found), key=lambda each: each[1]
    )


def counters(range_: HostedRange) -> Counters:
    """Return the counters of a range, as its leaseholder has them, checked."""
    found: Counters = range_.replica.registry.reads[ReadCounters](None, None)
    assert found.conserved()
    return found
