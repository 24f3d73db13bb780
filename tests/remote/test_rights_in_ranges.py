"""Granted rights where a store has several ranges, led by several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import AccessDenied
from postroom.messaging.requests import ReapQueue
from postroom.ranges.access import GrantRights, RevokeRights
from postroom.ranges.contract import Role
from postroom.ranges.requests import Get, Now
from postroom.ranges.rights import Verb
from postroom.server.cluster.access import Access
from tests.remote.scripted_nodes import Asked
from tests.remote.streams import Streams
from tests.server.hosting import ThreeNodes


class ShopStreams(Streams):
    """A client that has only the rights granted to its name."""

    def __init__(self, nodes: ThreeNodes) -> None:
        super().__init__(nodes)
        self.ask(Now())  # it knows the time

    def open(self, link: int, address: str) -> None:
        self._access = Access(Role.NONE, name="shop")
        super().open(link, address)


@pytest.fixture
def nodes() -> Iterator[ThreeNodes]:
    made = ThreeNodes(b"m")
    made.lead(1, 1)
    made.lead(2, 2)
    for prefix in (b"a/", b"z/"):
        made.ask(1, GrantRights("shop", Verb.READ | Verb.WRITE | Verb.REAP, prefix))
    made.until(lambda: all(len([*each.grants.of("shop")]) == 2 for each in made.nodes.values()))
    yield made
    made.close()


def test_a_client_works_in_all_ranges_that_have_keys_of_its_prefixes(nodes: ThreeNodes) -> None:
    shop = ShopStreams(nodes)
    shop.put(1, b"a/1", b"value")
    shop.put(2, b"z/1", b"value")
    assert [shop.ask(Get(key)).value for key in (b"a/1", b"z/1")] == [b"value", b"value"]
    for key in (b"b", b"y"):
        with pytest.raises(AccessDenied, match="lacks the right 'read'"):
            shop.ask(Get(key))


@pytest.mark.parametrize("key", [b"a/jobs", b"z/jobs"])
def test_a_parked_reaper_ends_at_any_node_within_a_second_of_its_revocation(
    nodes: ThreeNodes, key: bytes
) -> None:
    shop = ShopStreams(nodes)
    shop.put(1, key, b"")
    transaction_id = shop.router.client + bytes(8)
    call: Any = Asked(ReapQueue(key, 10, 1 << 20, transaction_id, 60.0, wait=True))
    shop.router.submit(call)
    shop.pass_time(2.0)
    assert not call.answers, "it waits"
    nodes.ask(1, RevokeRights("shop"))
    shop.until(lambda: call.answers, 1.0)
    assert isinstance(call.error, AccessDenied)
