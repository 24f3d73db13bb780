"""The states of a link: the table, and that what happens to one follows it."""

from __future__ import annotations

import pytest

from postroom.client.routing import links as module
from postroom.client.routing.links import SILENT_SECONDS, TRANSITIONS, Link, LinkEvent, LinkState
from postroom.protocol import frames
from postroom.protocol.failures import WireError
from postroom.ranges.requests import Get
from tests.remote.scripted_nodes import Asked


def link() -> Link:
    return Link(1, "a:1", bytes(32), 0.0)


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    reached = {LinkState.OPENING}
    while found := {s for each in reached for s in TRANSITIONS[each].values()} - reached:
        reached |= found
    assert reached == set(LinkState) == set(TRANSITIONS)
    assert {event for each in TRANSITIONS.values() for event in each} == set(LinkEvent)


def test_requests_leave_after_the_welcome_of_the_node() -> None:
    each = link()
    each.queue(Asked(Get(b"k")))
    assert each.take(0) is not None
    assert each.state is LinkState.GREETED
    assert each.take(0) is None
    each.heard(1.0)
    each.welcomed(1, 100, 1)
    assert each.state is LinkState.READY
    assert each.take(0) is not None
    assert each.sent


def test_a_node_that_is_asked_and_stays_silent_is_given_up() -> None:
    each = link()
    each.take(0)
    each.heard(1.0)
    each.welcomed(1, 100, 1)
    each.look_up(2.0)
    assert each.state is LinkState.ASKED
    assert not each.is_silent(2.0)
    each.look_up(2.5)  # it was asked at 2.0
    assert each.is_silent(2.0 + SILENT_SECONDS)
    each.heard(3.0)
    assert each.state is LinkState.READY
    assert not each.is_silent(100.0)


def test_a_welcome_before_the_hello_is_an_error() -> None:
    each = link()
    each.heard(0.5)
    with pytest.raises(WireError, match="before the Hello"):
        each.welcomed(1, 100, 1)
    assert not each.ready


def test_withdrawals_do_not_make_a_request_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused as if nothing had happened, though another link might have taken it before."""
    each = link()
    each.take(0)
    each.heard(1.0)
    each.welcomed(1, 100, 1)
    large, gone = Asked(Get(bytes(1000))), [Asked(Get(b"k")) for _ in range(50)]
    for number, call in enumerate((large, *gone), 1):
        call.number = number
    monkeypatch.setattr(module, "FRAME_BYTES_MAX", 1050)
    for call in gone:
        each.sent[call.number] = call
        each.withdraw(call)
    each.queue(large)
    first, second = each.take(0), each.take(0)
    assert not large.done
    assert large.number in each.sent
    assert first is not None
    assert second is not None
    asked, withdrawn = frames.from_client(first), frames.from_client(second)
    assert isinstance(asked, frames.Ask)
    assert isinstance(withdrawn, frames.Ask)
    assert [number for number, _ in asked.requests] == [large.number]
    assert withdrawn.withdrawn == [call.number for call in gone]
    assert each.take(0) is None
