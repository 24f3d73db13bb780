"""The ranges of a node, as its clients are told of them, and the requests that name one.

::

    Welcome          the ranges that the node leads
    WrongRange       those that have the keys of a request, as far as the node has a replica; then
                     the one that was asked, as it is now
    NotLeaseholder   the range whose leader is meant

While a node has one range, no client is told of any, and none needs to name one.

A client with granted rights is told of ranges as they are shown to it (:meth:`.Rights.shown`). It
can name no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from postroom.limits import (
    LED_RANGES_A_STEP,
    LED_RANGES_TOLD_BYTES_MAX,
    LED_RANGES_TOLD_MAX,
    RANGES_TOLD_BYTES_MAX,
    RANGES_TOLD_MAX,
    WELCOME_STEPS,
)
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import Call
from postroom.ranges.contract import ROOT_ID, Concern, KeySet, RangeIds, Request, Scope
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.listing import RangeInfo
from postroom.ranges.rights import Rights
from postroom.server.replicas import Replicas

R = TypeVar("R", RangeDescriptor, RangeInfo)


def has_several_ranges(replicas: Replicas) -> bool:
    """Return whether the node has several ranges."""
    return len(replicas.hosted) > 1


def shown_to(rights: Rights | None, ranges: Iterable[R]) -> Iterator[R]:
    """Yield ranges as they are shown to a client with some rights; ``None``: as they are."""
    if rights is None:
        yield from ranges
        return
    for each in ranges:
        span = rights.shown(each.start, each.end)
        if span is not None:
            yield msgspec.structs.replace(each, start=span[0], end=span[1])


def led_ranges(replicas: Replicas, rights: Rights | None) -> list[RangeDescriptor]:
    """Return the ranges that the node leads, for a client; none, while it has one range."""
    if not has_several_ranges(replicas):
        return []
    led = [
        hosted.replica.bounds.descriptor
        for hosted in replicas.hosted.values()
        if hosted.replica.group.is_leader
    ]
    return _few(shown_to(rights, led), LED_RANGES_TOLD_MAX, LED_RANGES_TOLD_BYTES_MAX)


def welcome_steps(replicas: Replicas) -> int:
    """Return the cost in steps of telling a client the nodes, and the ranges of this one."""
    return WELCOME_STEPS + len(replicas.hosted) // LED_RANGES_A_STEP


def concerned_ranges(
    replicas: Replicas, request: Request, named: int, rights: Rights | None
) -> list[RangeDescriptor]:
    """Return the ranges that contain a part of what a request concerns.

    Args:
        replicas: the node's.
        request: the request.
        named: the range that it names; 0: none. A request without keys concerns this one.
        rights: the rights of the client that is told; ``None``: it is told everything.
    """
    concerns = list(request.participants())
    if named in replicas.hosted and isinstance(concerns[0], Scope):
        by_name = list(shown_to(rights, [replicas.by_id(named).bounds.descriptor]))
        if by_name:
            return by_name
    known = dict.fromkeys(each for concern in concerns for each in _known(replicas, concern))
    return _few(shown_to(rights, known))


def submit_to_range(
    replicas: Replicas, call: Call, name: tuple[int, int], rights: Rights | None
) -> None:
    """Submit a request to the range that it names, if that is here and has not changed.

    Args:
        replicas: the node's.
        call: the request.
        name: the id and the generation of the range.
        rights: the rights of the client; ``None``: it may name every range.
    """
    hosted = replicas.hosted.get(name[0])
    descriptor = None if hosted is None else hosted.replica.bounds.descriptor
    if (
        hosted is None
        or descriptor is None
        or descriptor.generation != name[1]
        or not any(shown_to(rights, [descriptor]))
    ):
        call.complete(None, WrongRange())
    else:
        replicas.submit_to(hosted.replica, call)


def _known(replicas: Replicas, concern: Concern) -> Iterator[RangeDescriptor]:
    """Yield the ranges of a node that contain a part of what a request concerns."""
    if isinstance(concern, KeySet):
        found = [owner for key in concern.keys if (owner := replicas.by_key(key)) is not None]
        found += [owner for span in concern.spans for owner in replicas.by_span(*span)]
    elif isinstance(concern, RangeIds):
        found = [replicas.by_id(each) for each in concern.ids if each in replicas.hosted]
    elif concern is Scope.WHOLE_STORE:
        replicas.charge(len(replicas.hosted) // LED_RANGES_A_STEP)
        found = [hosted.replica for hosted in replicas.hosted.values()]
    else:
        found = [replicas.by_id(ROOT_ID)] if ROOT_ID in replicas.hosted else []
    return (each.bounds.descriptor for each in found)


def _few(
    descriptors: Iterable[RangeDescriptor],
    ranges_max: int = RANGES_TOLD_MAX,
    bytes_max: int = RANGES_TOLD_BYTES_MAX,
) -> list[RangeDescriptor]:
    """Return as many of the descriptors as may be told at a time."""
    found: list[RangeDescriptor] = []
    size = 0
    for each in descriptors:
        size += len(each.start) + len(each.end or b"")
        if len(found) >= ranges_max or size > bytes_max:
            break
        found.append(each)
    return found
