"""The memory for values, which the ranges of a node share."""

from __future__ import annotations

from postroom.server.node import Node
from tests.client.stores import Store
from tests.server.hosting import ThreeNodes, cut


def sizes(store: Store) -> list[int]:
    """Return the memory for values of each range."""
    return [each.values_bytes for each in store.node.replicas.hosted.values()]


def test_the_ranges_of_a_node_share_its_memory_for_values() -> None:
    store = Store()
    whole = store.node.values_bytes
    store.db.put(b"a", b"value")
    assert sizes(store) == [whole]
    cut(store.node, b"m", b"z")
    store.driver.settle()
    for key in (b"a", b"m", b"z"):
        store.db.put(key, b"value of " + key)
    assert sizes(store) == [whole // 4] * 3
    assert [store.db.get(key) for key in (b"a", b"m", b"z")] == [
        b"value of a", b"value of m", b"value of z",
    ]  # fmt: skip
    caches = [each.replica.cache for each in store.node.replicas.hosted.values()]
    for key in range(50_000):
        caches[1].offer(b"%05d" % key, bytes(500))
    kept = [len(each._young) + len(each._old) for each in caches]
    assert 0 < kept[1] * 505 <= whole // 4 + 1000
    store.db.close()


def test_a_range_that_is_not_served_here_has_no_memory_for_values() -> None:
    nodes = ThreeNodes(b"m", b"t")
    for range_id in (1, 2, 3):
        nodes.lead(range_id, range_id)
    for node_id, node in nodes.nodes.items():
        whole = [node.values_bytes if each == node_id else 0 for each in (1, 2, 3)]
        nodes.until(lambda node=node, whole=whole: shares(node) == whole)
    nodes.lead(2, 1)
    node = nodes.nodes[1]
    nodes.until(lambda: shares(node) == [node.values_bytes // 2, node.values_bytes // 2, 0])
    nodes.close()


def shares(node: Node) -> list[int]:
    return [node.replicas.hosted[each].values_bytes for each in (1, 2, 3)]
