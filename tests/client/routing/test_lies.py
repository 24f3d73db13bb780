"""A client that was told of ranges that do not exist: true nodes correct it, whatever it was told.

The nodes here answer as those of a cluster do (:mod:`postroom.server.cluster.session_ranges`).
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroom.protocol.failures import NOT_LEASEHOLDER
from postroom.ranges.bounds import Bounds
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.requests import Get, Now
from tests.remote.scripted_nodes import NODES, VALUE, Asked, Stream, World, only

WHOLE = RangeDescriptor(1)
LEFT = RangeDescriptor(1, b"", b"m", 2)
RIGHT = RangeDescriptor(2, b"m", None, 2)
EMPTY: dict[str, list[RangeDescriptor]] = {address: [] for _, address in NODES}
ONE = EMPTY | {"a:1": [WHOLE]}
TWO = EMPTY | {"a:1": [LEFT], "b:1": [RIGHT]}
KEYS = (b"", b"a", b"g", b"m", b"z")
ENDS = (*KEYS[1:], None)
LIES = st.builds(
    RangeDescriptor,
    st.integers(1, 4),
    st.sampled_from(KEYS),
    st.sampled_from(ENDS),
    st.integers(1, 4),
)
REQUESTS = st.sampled_from([*map(Get, KEYS), Now(), ListRanges(b"", None)])
SECONDS = 5.0


def answer(stream: Stream, led: dict[str, list[RangeDescriptor]], number: int) -> None:
    """Answer a request as a true node does, which has a replica of each range."""
    request, named = stream.requests[number], stream.named.pop(number, None)
    ranges = [each for ranges in led.values() for each in ranges]
    (concern,) = request.participants()
    meant = [each for each in ranges if (each.range_id, each.generation) == named]
    if named is None:
        meant = [each for each in ranges if Bounds(each).contains_all(concern)]
    concerned = [each for each in ranges if isinstance(request, Now) or _meets(each, request)]
    if len(meant) != 1 or not Bounds(meant[0]).contains_all(concern):
        stream.misdirected(number, *dict.fromkeys((*concerned, *meant)))
    elif meant[0] not in led[stream.address]:
        leader = next(node for node, address in NODES if meant[0] in led[address])
        told = meant if len(ranges) > 1 else ()
        stream.fail(number, NOT_LEASEHOLDER, (leader, dict(NODES)[leader], *told))
    else:
        stream.answer(number, _result(meant[0], request))


def _meets(descriptor: RangeDescriptor, request: Get | ListRanges) -> bool:
    if isinstance(request, Get):
        return Bounds(descriptor).contains(request.key)
    start, end = Bounds(descriptor).clip(request.start, request.end)
    return end is None or start < end


def _result(descriptor: RangeDescriptor, request: Any) -> Any:
    if isinstance(request, Now):
        return 7
    if isinstance(request, Get):
        return VALUE
    id_, start, end, generation = (
        descriptor.range_id, descriptor.start, descriptor.end, descriptor.generation,
    )  # fmt: skip
    return [RangeInfo(id_, start, end, generation, 0, 1, (1,))]


def serve(world: World, led: dict[str, list[RangeDescriptor]], seconds: float) -> None:
    """Have true nodes answer for a time, or until nothing is under way."""
    end = world.now + seconds
    ranges = [each for ranges in led.values() for each in ranges]
    leader = next(node for node, at in NODES if any(each.range_id == 1 for each in led[at]))
    while world.now < end:
        for stream in [each for each in world.streams.values() if each.open]:
            if stream.hello is not None or stream.looked_up:
                stream.hello, stream.looked_up = None, 0
                stream.leads(*(led[stream.address] if len(ranges) > 1 else ()), leader=leader)
            for number in list(stream.requests):
                if number in stream.requests:
                    answer(stream, led, number)
        if seconds > 1.0 and next(iter(world.router._unanswered()), None) is None:
            return
        world.pass_time(0.01)


@given(
    st.sampled_from([ONE, TWO]),
    st.lists(
        st.one_of(LIES, REQUESTS, st.sampled_from([0.01, 0.03, 0.1, 0.9])), min_size=1, max_size=12
    ),
)
def test_a_call_is_answered_whatever_its_client_was_told(
    led: dict[str, list[RangeDescriptor]],
    events: list[RangeDescriptor | Get | Now | ListRanges | float],
) -> None:
    """Lies come before a client has asked for anything, between calls, and during calls."""
    world = World()
    serve(world, led, 0.03)
    calls: list[Asked] = []
    for event in events:
        if isinstance(event, RangeDescriptor):
            link = next(iter(world.router._links.values()))
            world.router._failed_tries.learn([event], link)
            world.read()
        elif isinstance(event, float):
            serve(world, led, event)
        else:
            calls.append(world.ask(event))
    serve(world, led, SECONDS)
    assert [(call.done, call.error) for call in calls] == [(True, None)] * len(calls)


def test_a_range_with_other_bounds_than_a_node_tells_is_refuted() -> None:
    """Its id and its generation are true, so that the node does not miss the range."""
    world = World()
    stream = world.settle("a:1")
    stream.hello = None
    call = world.ask(Get(b"z"))
    stream.misdirected(only(stream.requests), RangeDescriptor(1, b"m", None, 2))
    serve(world, TWO, SECONDS)
    assert call.result == VALUE


def test_a_request_goes_on_with_the_welcome_that_tells_its_range() -> None:
    world = World()
    stream = world.settle("a:1")
    call = world.ask(Get(b"z"))
    stream.misdirected(only(stream.requests), RangeDescriptor(1, b"", b"a", 2))
    assert not stream.requests
    stream.leads()
    assert list(stream.requests) == [call.number]
