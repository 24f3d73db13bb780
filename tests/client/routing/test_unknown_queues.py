"""A range that has not heard of a queue is not believed before the root was asked."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from postroom.errors import NoSuchQueue, Unavailable
from postroom.limits import REQUEST_SECONDS
from postroom.messaging.queues.definition_requests import QueueDefinition, QueueSettings
from postroom.messaging.queues.queries import ReadQueueMessage, ReadQueues
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.descriptor import RangeDescriptor
from tests.client.routing.test_awaited_changes import pass_time
from tests.client.routing.test_many_ranges import asked_at, three
from tests.remote.scripted_nodes import COMMITTED, Asked, World, commit, only

ASKED = ReadQueueMessage("q", b"z")
DEFINED = QueueDefinition("q", 1, 1, QueueSettings())
ENQUEUED = replace(commit(1, EnqueueInQueue("q", b"z", "", b"z", b"")), anchor=b"z")
UNKNOWN = NoSuchQueue.__name__


def told_that_there_is_none(request: Any = ASKED) -> tuple[World, Asked]:
    """Return a call that the last range has answered with the error that there is no queue."""
    world = three()
    call = world.ask(request)
    right = world.to("c:1")
    right.fail(only(right.requests), UNKNOWN, "q")
    return world, call


def root_says(world: World, *definitions: QueueDefinition) -> None:
    root = world.to("a:1")
    assert asked_at(world, "a:1") == [ReadQueues("q")]
    root.answer(only(root.requests), definitions)


@pytest.mark.parametrize("request_", [ASKED, ENQUEUED])
def test_a_queue_that_the_root_knows_is_asked_for_again(request_: Any) -> None:
    world, call = told_that_there_is_none(request_)
    assert not call.answers
    root_says(world, DEFINED)
    for _ in range(3):
        pass_time(world, 0.5)
        right = world.to("c:1")
        assert len(asked_at(world, "c:1")) == 1
        right.fail(only(right.requests), UNKNOWN, "q")
        root_says(world, DEFINED)
    pass_time(world, 2.0)
    answer = [] if request_ is ASKED else COMMITTED
    right = world.to("c:1")
    right.answer(only(right.requests), answer)
    assert call.result == answer


@pytest.mark.parametrize(
    "definitions", [[], [QueueDefinition("q", 1, 1, QueueSettings(), dropped=True)]]
)
def test_a_queue_that_the_root_does_not_know_is_none(definitions: list[QueueDefinition]) -> None:
    world, call = told_that_there_is_none()
    root_says(world, *definitions)
    assert isinstance(call.error, NoSuchQueue)
    assert call.error.queue == "q"


def test_the_error_of_the_root_is_told() -> None:
    world, call = told_that_there_is_none()
    root = world.to("a:1")
    root.fail(only(root.requests), UNKNOWN, "q")
    assert isinstance(call.error, NoSuchQueue)
    assert not root.requests


def test_a_call_that_no_range_understands_ends_with_its_time() -> None:
    world, call = told_that_there_is_none()
    for _ in range(int(4 * REQUEST_SECONDS)):
        if call.answers:
            break
        for address, answer in (("a:1", [DEFINED]), ("c:1", None)):
            stream = world.to(address)
            for number in list(stream.requests):
                if answer is None:
                    stream.fail(number, UNKNOWN, "q")
                else:
                    stream.answer(number, answer)
        pass_time(world, 0.5)
    assert isinstance(call.error, NoSuchQueue | Unavailable)


def test_a_cancelled_call_is_not_asked_for_again() -> None:
    world, call = told_that_there_is_none()
    world.router.cancel(call)
    root_says(world, DEFINED)
    pass_time(world, 2.0)
    assert not asked_at(world, "c:1")


def test_the_only_range_is_believed() -> None:
    world = World()
    stream = world.to("a:1")
    stream.leads(RangeDescriptor(1))
    call = world.ask(ASKED)
    stream.fail(only(stream.requests), UNKNOWN, "q")
    assert isinstance(call.error, NoSuchQueue)
    assert not stream.requests
