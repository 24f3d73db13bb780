"""The replicas of a node, and the one door to them."""

from __future__ import annotations

import re
from pathlib import Path

import postroom.server
from postroom.ranges.contract import ROOT_ID
from tests.client.stores import Store

SERVER = Path(postroom.server.__file__).parent
OWNERS = {"node.py", "replicas.py", "assembly.py", "hosted_range.py"}


def test_a_replica_is_found_by_its_range_and_by_its_keys() -> None:
    store = Store()
    replicas = store.node.replicas
    assert replicas.by_key(b"any") is replicas.by_id(ROOT_ID) is store.node.root.replica
    assert replicas.by_span(b"a", b"b") == (store.node.root.replica,)
    store.db.close()


def test_the_door_is_that_of_the_replica() -> None:
    """Each request goes through it: it may cost nothing as long as there is one range."""
    store = Store()
    store.db.put(b"key", b"value")
    replicas, replica = store.node.replicas, store.node.root.replica
    assert replicas.submit == replica.submit
    found = replicas.try_get(b"key")
    assert found is not None
    assert found.value == b"value"
    assert replicas.lease_sequence == replica.lease.sequence
    assert not replicas.holds_for(b"nobody..")
    store.db.close()


def test_the_server_reaches_replicas_through_one_door() -> None:
    """Drivers, sessions and the rest of the server go through the door."""
    reaching = re.compile(r"\bnode\.root\.replica\b")
    found = [
        f"{path.name}: {line.strip()}"
        for path in SERVER.rglob("*.py") if path.name not in OWNERS
        for line in path.read_text().splitlines() if reaching.search(line)
    ]  # fmt: skip
    assert found == []
