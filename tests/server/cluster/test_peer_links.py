"""The states of the stream to another node: the table, and that what happens to one follows it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from postroom.server.cluster.peer_links import TRANSITIONS, PeerLinkEvent, PeerLinkState
from tests.server.cluster.streams import cluster, run, talkers, until


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    reached = {PeerLinkState.APART}
    while found := {s for each in reached for s in TRANSITIONS[each].values()} - reached:
        reached |= found
    assert reached == set(PeerLinkState) == set(TRANSITIONS)
    assert {event for each in TRANSITIONS.values() for event in each} == set(PeerLinkEvent)
    assert set(TRANSITIONS[PeerLinkState.CLOSED].values()) == {PeerLinkState.CLOSED}


def test_a_stream_is_called_for_until_it_is_there_and_again_when_it_ends() -> None:
    async def story() -> None:
        async with talkers(1, 2) as (one, two):
            link, dialer, opened = one.peers._links[2], one.peers.dialer, one.peers.dialer.open
            called: list[PeerLinkState] = []

            async def call(*arguments: Any) -> Any:
                called.append(link.state)
                return await opened(*arguments)

            dialer.open = call  # type: ignore[method-assign]
            await until(lambda: link.state is PeerLinkState.CONNECTED)
            await two.close()
            await until(lambda: link.state is PeerLinkState.APART)
            assert link.fingerprint == b""
            await until(lambda: len(called) > 1)  # one of them after it was seen apart
            assert set(called) == {PeerLinkState.CALLING}

    run(story())


def test_a_refused_link_stays_refused_until_the_next_call() -> None:
    async def story() -> None:
        async with talkers(1, 2) as (one, two):
            link = one.peers._links[2]
            await until(lambda: link.state is PeerLinkState.CONNECTED)
            await two.close()
            await two.listen()
            two.talk(cluster(two))  # node 1 is not of it
            await until(lambda: link.state is PeerLinkState.REFUSED)
            assert "removed" in link.connection_error
            one.peers.follow(cluster(one))
            assert link.state is PeerLinkState.CLOSED

    run(story())


def test_an_unexpected_error_does_not_end_a_link_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was never called again, and nothing said so."""

    async def story() -> None:
        async with talkers(1, 2) as (one, two):
            link, dialer, opened = one.peers._links[2], one.peers.dialer, one.peers.dialer.open
            failures: list[Exception] = [ArithmeticError("no number"), MemoryError()]

            async def fail(*arguments: Any) -> Any:
                if failures:
                    raise failures.pop()
                return await opened(*arguments)

            dialer.open = fail  # type: ignore[method-assign]
            await until(lambda: link.connected)
            await two.close()
            await until(lambda: not failures)
            await two.listen()
            two.talk(cluster(one, two))
            await until(lambda: link.connected)
            assert one.peers._links[2] is link

    with caplog.at_level(logging.ERROR):
        run(story())
    said = [record.message for record in caplog.records if record.exc_info]
    assert [each.rpartition(" ")[2] for each in said] == ["failed"] * 2
