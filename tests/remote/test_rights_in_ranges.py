"""Granted rights where a store has several ranges, led by several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.errors import AccessDenied
from postroom.messaging.requests import ReapQueue
from postroom.protocol import frames
from postroom.protocol.requests import REVISION
from postroom.ranges.access import GrantRights, RevokeRights
from postroom.ranges.contract import Role
from postroom.ranges.requests import Get, Now, Scan
from postroom.ranges.rights import Verb
from postroom.ranges.split.requests import AwaitSplit, NewRangeId, PrepareSplit
from postroom.server.cluster.access import Access
from postroom.server.cluster.sessions import Sessions
from tests.remote.client_names import secret_of
from tests.remote.scripted_nodes import Asked
from tests.remote.streams import Streams
from tests.remote.test_splits import SplitNodes
from tests.server.hosting import MEMBERS, ThreeNodes


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


# --- the bounds of ranges -------------------------------------------------------------------------


@pytest.fixture
def divided() -> Iterator[ThreeNodes]:
    """Return nodes with bounds among the keys of the shop, and among those of others."""
    made = ThreeNodes(b"c/secret", b"m/5", b"n/secret", b"q/secret", b"z/secret", b"zz/secret")
    for range_id in made.range_ids:
        made.lead(range_id, 1 + range_id % 3)
    for prefix in (b"m/", b"y/"):
        made.ask(2, GrantRights("shop", Verb.READ | Verb.WRITE | Verb.ADMIN, prefix))
    made.until(lambda: all(len([*each.grants.of("shop")]) == 2 for each in made.nodes.values()))
    yield made
    made.close()


class OverheardStreams(ShopStreams):
    """A client that remembers all that nodes have told it.

    Attributes:
        heard: all frames.
    """

    def __init__(self, nodes: ThreeNodes) -> None:
        self.heard = b""
        super().__init__(nodes)

    def received(self, link: int, frame: bytes) -> None:
        self.heard += frame
        super().received(link, frame)


def shown_bounds(client: Streams) -> list[bytes]:
    """Return the bounds that a client knows."""
    return [each.start for each in client.router._lanes.cache]


def test_a_client_hears_of_no_bound_among_the_keys_of_others(divided: ThreeNodes) -> None:
    shop = OverheardStreams(divided)
    for number, key in enumerate((b"m/1", b"m/7", b"y/1"), 1):
        shop.put(number, key, b"value")
        assert shop.ask(Get(key)).value == b"value"
    for key in (b"a", b"c/x", b"p", b"zz"):
        with pytest.raises(AccessDenied):
            shop.ask(Get(key))
    info = shop.ask(AwaitSplit(b"m/5"))
    assert (info.start, info.end) == (b"m/5", b"y/")
    assert b"m/5" in shop.heard, "a bound among its own keys"
    assert b"secret" not in shop.heard
    assert shown_bounds(shop) == [b"", b"m/", b"m/5", b"y/"]


def test_a_client_with_a_grant_more_learns_of_its_bounds_and_works_on(divided: ThreeNodes) -> None:
    shop = OverheardStreams(divided)
    shop.put(1, b"m/1", b"value")
    divided.ask(2, GrantRights("shop", Verb.READ | Verb.WRITE, b"q/"))
    shop.pass_time(1.0)
    shop.put(2, b"q/a", b"value")
    shop.put(3, b"q/z", b"value")
    assert [shop.ask(Get(key)).value for key in (b"q/a", b"q/z")] == [b"value", b"value"]
    assert b"q/secret" in shown_bounds(shop)
    divided.ask(2, RevokeRights("shop", prefix=b"q/"))
    shop.pass_time(1.0)
    shop.put(4, b"y/1", b"value")
    assert shop.ask(Get(b"m/1")).value == b"value"


def test_a_client_that_guesses_a_range_learns_nothing(divided: ThreeNodes) -> None:
    hidden = divided.range_ids[3], 2
    assert divided.nodes[1].replicas.by_id(hidden[0]).bounds.start == b"n/secret"
    answers, node = [], divided.nodes[1]
    for name in (hidden, (99, 2)):
        client = Sessions(node).open("guesser", lambda: None, Access(Role.NONE, name="shop"))
        clock = node.clock.reading()
        hello = (0, frames.PROTOCOL_VERSION, secret_of(b"guesser"), 1, REVISION)
        client.received(frames.encode(hello))
        requests = [(number, each) for number, each in enumerate((Get(b"m/1"), Now()), 1)]
        ask = (1, clock, requests, [], False, [(number, *name) for number, _ in requests])
        client.received(frames.encode(ask))
        divided.until(lambda: node.turns, 1.0)
        told = [frames.from_node(frame) for frame in iter(client.take, None)]
        answers.append([each.answers for each in told if isinstance(each, frames.Answers)])
        client.close()
    assert answers[0] == answers[1]
    assert len(answers[0]) > 0


def split(nodes: SplitNodes, key: bytes) -> int:
    """Split the range of a key there, and return the id of the right half."""
    new: int = nodes.ask(nodes.awaited_leader(1), NewRangeId())
    nodes.until(lambda: all(each.is_given_out(new) for each in nodes.nodes.values()))
    descriptors = [each.replica.bounds for each in nodes.nodes[1].replicas.hosted.values()]
    [left] = [each.descriptor.range_id for each in descriptors if each.contains(key)]
    nodes.ask(nodes.awaited_leader(left), PrepareSplit(key, new))
    nodes.until(lambda: nodes.everywhere(new))
    nodes.awaited_leader(new)
    return new


@pytest.mark.parametrize("seed", range(4))
def test_a_client_works_on_while_ranges_split_and_move_around_its_keys(seed: int) -> None:
    nodes, chance = SplitNodes(), Random(seed)
    nodes.lead(1, 1)
    for prefix in (b"m/", b"y/"):
        nodes.ask(1, GrantRights("shop", Verb.READ | Verb.WRITE, prefix))
    nodes.until(lambda: all(len([*each.grants.of("shop")]) == 2 for each in nodes.nodes.values()))
    shop, written = OverheardStreams(nodes), dict[bytes, bytes]()
    bounds = [b"c/secret", b"m/3", b"m/7", b"n/secret", b"x/secret", b"y/4", b"z/secret"]
    chance.shuffle(bounds)
    for number, bound in enumerate(bounds):
        nodes.lead(split(nodes, bound), chance.choice(MEMBERS))
        for each in range(3):
            key = chance.choice((b"m/", b"y/")) + b"%d" % chance.randrange(10)
            written[key] = b"%d %d" % (number, each)
            shop.put(10 * number + each + 1, key, written[key])
        assert {key: shop.ask(Get(key)).value for key in written} == written
        own = sorted(key for key in written if key.startswith(b"m/"))
        pairs = shop.ask(Scan(b"m/", b"m0", 0, 100, 1 << 20)).pairs
        assert [key for key, _ in pairs] == own[: len(pairs)]
    assert b"secret" not in shop.heard, f"repeat it with seed {seed}"
    nodes.close()


def test_a_client_of_a_queue_knows_all_ranges(divided: ThreeNodes) -> None:
    divided.ask(2, RevokeRights("shop"))
    divided.ask(2, GrantRights("shop", Verb.WORK, queue="emails"))
    divided.until(
        lambda: all(len([*each.grants.of("shop")]) == 1 for each in divided.nodes.values())
    )
    shop = ShopStreams(divided)
    shop.until(lambda: len(shown_bounds(shop)) == len(divided.range_ids))
    ranges = [divided.nodes[1].replicas.by_id(each).bounds for each in divided.range_ids]
    assert shown_bounds(shop) == sorted(each.start for each in ranges)
