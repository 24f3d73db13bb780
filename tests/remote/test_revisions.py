"""A client sends no node a request from after the node's revision, and tells the caller."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import pytest

from postroom.errors import CommitUnknown, VersionMismatch
from postroom.protocol import requests
from postroom.protocol.requests import MODULES, REVISION, Requests
from postroom.ranges.contract import ConcernsKey, ConcernsStore, MayWait, Read, Write
from postroom.ranges.requests import Get, Key, Put
from tests.remote.scripted_nodes import NODES, World, commit

NEXT = REVISION + 1


class Rename(ConcernsKey, Write, frozen=True, tag="rename"):
    """A write of the next revision."""

    answer: ClassVar = None
    since: ClassVar = NEXT

    key: Key


class Await(MayWait, ConcernsStore, Read, frozen=True, tag="await"):
    """A read of the next revision."""

    answer: ClassVar = None
    since: ClassVar = NEXT

    wait: bool = True


NEXT_REQUESTS = Requests((*MODULES, sys.modules[__name__]))


@pytest.fixture(autouse=True)
def a_client_of_the_next_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REVISION", NEXT)


def at_a_leader(revision: int, address: str = "a:1", world: World | None = None) -> World:
    world = world or World(requests=NEXT_REQUESTS)
    node = next(node for node, at in NODES if at == address)
    world.to(address).welcome(node, 100, revision)
    return world


@pytest.mark.parametrize(
    "request_", [commit(1, Put(b"k", b"v"), Rename(b"k")), commit(1, Rename(b"k")), Await()]
)
@pytest.mark.parametrize("is_known", [True, False], ids=["known leader", "while it is looked for"])
def test_a_request_of_the_next_revision_is_not_sent_and_the_error_says_what_to_do(
    request_: Any, is_known: bool
) -> None:
    world = World(requests=NEXT_REQUESTS)
    if is_known:
        at_a_leader(REVISION, world=world)
    call, other = world.ask(request_), world.ask(Get(b"k"))
    if not is_known:
        at_a_leader(REVISION, world=world)
    assert isinstance(call.error, VersionMismatch)
    assert "nothing was changed: upgrade all nodes" in str(call.error)
    stream = world.to("a:1")
    assert [type(each) for each in stream.requests.values()] == [Get]
    assert stream.open
    assert not other.done


def test_an_outcome_is_unknown_if_a_node_of_the_next_revision_may_have_done_it() -> None:
    world = at_a_leader(NEXT)
    stream = world.to("a:1")
    call = world.ask(commit(1, Rename(b"k")))
    assert call.number in stream.requests
    stream.breaks()
    world.pass_time(1.0)
    at_a_leader(REVISION, "b:1", world)
    assert isinstance(call.error, CommitUnknown)


def test_a_leader_of_this_revision_is_asked_what_it_knows() -> None:
    world = at_a_leader(REVISION)
    world.ask(commit(1, Put(b"k", b"v")))
    assert len(world.to("a:1").requests) == 1


def test_a_leader_of_the_next_revision_is_asked_everything() -> None:
    world = at_a_leader(NEXT)
    world.ask(Await())
    world.ask(commit(1, Rename(b"k")))
    assert len(world.to("a:1").requests) == 2


def test_this_version_is_of_the_first_revision() -> None:
    """A release of the next revision changes this line, and no other version may be asked it."""
    assert REVISION == 2
