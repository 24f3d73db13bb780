"""What an earlier node does not know it is not asked; whoever wanted it is told."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from postroom.errors import CommitUnknown, VersionMismatch
from postroom.messaging.queues.requests import ClaimQueue, Selection
from postroom.messaging.requests import CancelScheduled, PostponeMessages
from postroom.protocol import requests, revisions
from postroom.ranges.requests import Get, Put
from tests.remote.scripted_nodes import NODES, World, commit

POSTPONE = PostponeMessages(b"k", [(bytes(20), 1)], 1.0, "", True)
CANCEL = CancelScheduled([(b"k", bytes(20))])
CLAIM = ClaimQueue("emails", bytes(16), 1, Selection())


def at_an_earlier_leader(address: str = "a:1", world: World | None = None) -> World:
    world = world or World()
    node = next(node for node, at in NODES if at == address)
    world.to(address).welcome(node, 100, 0)
    return world


@pytest.mark.parametrize(
    "request_", [commit(1, Put(b"k", b"v"), POSTPONE), commit(1, CANCEL), CLAIM], ids=type
)
@pytest.mark.parametrize("is_known", [True, False], ids=["known leader", "while it is looked for"])
def test_it_is_not_sent_and_the_error_says_what_to_do(request_: Any, is_known: bool) -> None:
    world = World()
    if is_known:
        at_an_earlier_leader(world=world)
    call, other = world.ask(request_), world.ask(Get(b"k"))
    if not is_known:
        at_an_earlier_leader(world=world)
    assert isinstance(call.error, VersionMismatch)
    assert "nothing was changed: upgrade all nodes" in str(call.error)
    stream = world.to("a:1")
    assert [type(each) for each in stream.requests.values()] == [Get]
    assert stream.open
    assert not other.done


def test_if_an_earlier_attempt_may_have_been_carried_out_it_is_not_certain() -> None:
    world = World()
    stream = world.settle("a:1")
    call = world.ask(commit(1, POSTPONE))
    assert stream.requests
    stream.breaks()
    world.pass_time(1.0)
    at_an_earlier_leader("b:1", world)
    assert isinstance(call.error, CommitUnknown)


def test_an_earlier_leader_is_asked_what_it_knows() -> None:
    world = at_an_earlier_leader()
    world.ask(commit(1, Put(b"k", b"v")))
    assert len(world.to("a:1").requests) == 1


FIRST = {
    "accounting", "await_quiet", "check_inbox", "commit", "conditional_put",
    "delete", "delete_range", "describe_node", "discard_dead_letters", "enqueue_message",
    "enqueue_update", "get", "get_for_update", "get_many", "increment", "list_dead_letters",
    "list_inboxes", "list_scheduled", "now", "peek", "protect", "put", "read_accounting",
    "read_counters", "read_nodes", "reap_messages", "reap_queue", "release_locks",
    "replay_dead_letters", "retire_node", "reverse_scan", "scan", "scan_changes", "unprotect",
}  # fmt: skip


def test_every_request_has_a_revision() -> None:
    """Whoever adds one gives it the next revision: a node of this one does not know it."""
    kinds = typing.get_args(requests.WriteRequest) + typing.get_args(requests.ClientRequest)
    names = {revisions.name_of(typing.get_origin(kind) or kind) for kind in kinds}
    assert names == FIRST | revisions.SINCE.keys()
    assert not FIRST & revisions.SINCE.keys()
    assert max(revisions.SINCE.values()) == revisions.REVISION
