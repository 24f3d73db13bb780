"""Queues of a cluster whose nodes hear of the root's changes at different times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest

from postroom.errors import Unavailable
from postroom.kv import keys
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DropQueue,
    QueueSettings,
    UpdateQueue,
)
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.raft.interface import RaftOptions
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import CommitTransaction
from tests.messaging.one_range import Asked
from tests.server.split_cluster import SHORT_LOG, SplitCluster, splits_by_hand

Q: Final = "work"
RANGE_ID: Final = 2
LAGS: Final = 3
"""The node that does not hear of the root."""

_numbers = itertools.count(1)


@pytest.fixture(params=[RaftOptions(), SHORT_LOG], ids=["entries", "snapshot"])
def cluster(request: pytest.FixtureRequest) -> Iterator[SplitCluster]:
    """Return a cluster with two ranges and a queue; node 3 leads the second range.

    Node 3 misses some of the root, which comes as entries later, or as a snapshot.
    """
    with splits_by_hand():
        made = SplitCluster(request.param)
        made.split(b"m", RANGE_ID)
        made.lead(RANGE_ID, LAGS)
        commit(made, ROOT_ID, CreateQueue(Q, QueueSettings()))
        made.run(1.0)
        yield made
        made.close()


def ask(cluster: SplitCluster, range_id: int, request: Any) -> Any:
    """Return the answer of a range's leaseholder, or raise its error."""
    hosted = cluster.hosted(cluster.awaited_leader(range_id), range_id)
    assert hosted is not None
    asked = Asked(request)
    hosted.replica.submit(asked)
    cluster.until(lambda: asked.answers)
    [(answer, error)] = asked.answers
    if error is not None:
        raise error
    return answer


def commit(cluster: SplitCluster, range_id: int, *writes: Any, anchor: bytes = b"") -> None:
    id_ = b"a client" + next(_numbers).to_bytes(8, "big")
    began = cluster.nodes[1].clock.reading()
    ask(cluster, range_id, CommitTransaction(id_, began, 60.0, 0, anchor, [], [], [*writes]))


def enqueue(cluster: SplitCluster, id_: bytes) -> None:
    commit(cluster, RANGE_ID, EnqueueInQueue(Q, id_, "", id_, b"payload"), anchor=id_)


def claim(cluster: SplitCluster) -> list[bytes]:
    consumer = b"a client" + next(_numbers).to_bytes(8, "big")
    request = ClaimQueue(Q, consumer, 10, ClaimSelection(), homes=(b"m", None))
    return [each.id for each in ask(cluster, RANGE_ID, request).messages]


def bodies(cluster: SplitCluster, node_id: int) -> list[bytes]:
    """Return the homes of the messages that a node has."""
    stored = cluster.nodes[node_id].engine.iterate(keys.DATA, keys.DATA_END)
    found = [(raw, raw.index(keys.END_OF_KEY, 1) + 2) for raw, _ in stored]
    return [keys.user_key(raw) for raw, end in found if raw[end:][:1] == keys.QUEUE_BODY]


def lag(cluster: SplitCluster) -> None:
    """Keep all that concerns the root from node 3."""
    cluster.blocking.append(lambda _, to, group, *__: to == LAGS and group == ROOT_ID)


def catch_up(cluster: SplitCluster) -> None:
    cluster.blocking.clear()
    cluster.until(lambda: cluster.is_level(ROOT_ID))
    cluster.run(2.0)


def test_a_pause_holds_once_the_node_has_heard_of_it(cluster: SplitCluster) -> None:
    enqueue(cluster, b"x")
    lag(cluster)
    commit(cluster, ROOT_ID, UpdateQueue(Q, {}, paused=True))
    catch_up(cluster)
    assert claim(cluster) == []
    commit(cluster, ROOT_ID, UpdateQueue(Q, {}, paused=False))
    cluster.run(1.0)
    assert claim(cluster) == [b"x"]


def test_a_queue_is_not_made_anew_while_a_leaseholder_does_not_know_that_it_was_dropped(
    cluster: SplitCluster,
) -> None:
    enqueue(cluster, b"x")
    lag(cluster)
    commit(cluster, ROOT_ID, DropQueue(Q))
    cluster.run(10.0)
    enqueue(cluster, b"y")
    with pytest.raises(Unavailable, match="was dropped"):
        commit(cluster, ROOT_ID, CreateQueue(Q, QueueSettings()))
    catch_up(cluster)
    commit(cluster, ROOT_ID, CreateQueue(Q, QueueSettings()))
    cluster.run(1.0)
    enqueue(cluster, b"z")
    cluster.run(1.0)
    assert bodies(cluster, LAGS) == [b"z"]
    assert claim(cluster) == [b"z"]


def test_a_leaseholder_that_lags_serves_no_queue_and_deletes_no_message_of_a_new_one(
    cluster: SplitCluster,
) -> None:
    enqueue(cluster, b"x")
    lag(cluster)
    cluster.lead(RANGE_ID, 2)
    commit(cluster, ROOT_ID, DropQueue(Q))
    cluster.run(10.0)
    commit(cluster, ROOT_ID, CreateQueue(Q, QueueSettings()))
    cluster.run(1.0)
    enqueue(cluster, b"y")
    cluster.lead(RANGE_ID, LAGS)
    cluster.run(10.0)
    with pytest.raises(Unavailable, match="yet to learn"):
        enqueue(cluster, b"z")
    assert bodies(cluster, LAGS) == [b"y"]
    catch_up(cluster)
    enqueue(cluster, b"z")
    assert claim(cluster) == [b"y", b"z"]
