"""Formation of a cluster: the decision by cases, and many random beginnings with crashes."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)

import msgspec
import pytest

from postroom.errors import Invalid, StoreCorrupted
from postroom.kv import keys
from postroom.kv.engine import EngineFailed
from postroom.kv.log_device import WriteFault
from postroom.kv.marker import FORMAT_VERSION
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.ranges.settings import (
    SETTINGS_KEY,
    SPLIT_BYTES,
    SPLIT_LOAD,
    SettingsInForce,
    founding_settings,
)
from postroom.server.cluster import formation
from postroom.server.cluster.formation import (
    Become,
    Decision,
    FoundCluster,
    Join,
    SelfDescription,
    WaitDecision,
    decide,
)
from postroom.server.opening import StoreRecord, check_empty, read_store
from tests.server.cluster.beginnings import Beginning
from tests.sim.disks import open_storage

A, B, C, D = "a:1", "b:1", "c:1", "d:1"
FIRST = (A, B, C)
NEW = b"new".ljust(16)


def store(address: str, life: int = 1) -> bytes:
    return f"{address}/{life}".encode().ljust(16)


def fresh(address: str, first: tuple[str, ...] = FIRST) -> SelfDescription:
    return SelfDescription(store(address), first, None)


def member(address: str, nodes: Nodes) -> SelfDescription:
    return SelfDescription(store(address), FIRST, nodes)


def cluster(*addresses: str, name: bytes = b"c" * 16) -> Nodes:
    nodes = [NodeDescriptor(number, each, store(each)) for number, each in enumerate(addresses, 1)]
    return Nodes(name, len(nodes) + 1, tuple(nodes))


def decided(
    address: str, heard: dict[str, SelfDescription], first: tuple[str, ...] = FIRST
) -> Decision:
    return decide(address, store(address), first, heard, NEW)


def waits(decision: Decision, *words: str) -> bool:
    assert isinstance(decision, WaitDecision)
    return all(word in decision.reason for word in words)


# --- by cases -------------------------------------------------------------------------------------


def test_the_least_address_founds_when_all_are_there() -> None:
    assert decided(A, {B: fresh(B), C: fresh(C)}) == FoundCluster(cluster(A, B, C, name=NEW))


def test_the_order_of_the_list_does_not_matter() -> None:
    first = (C, A, B, A)
    found = decide(A, store(A), first, {B: fresh(B), C: fresh(C)}, NEW)
    assert found == FoundCluster(cluster(A, B, C, name=NEW))


def test_a_node_that_is_not_the_first_waits_for_the_founder() -> None:
    assert waits(decided(B, {A: fresh(A), C: fresh(C)}), A, "found")


def test_the_founder_waits_for_a_node_that_does_not_answer() -> None:
    assert waits(decided(A, {B: fresh(B)}), C, "--join")


def test_one_node_founds_alone() -> None:
    assert decided(A, {}, (A,)) == FoundCluster(cluster(A, name=NEW))


def test_a_node_that_is_not_on_its_list_does_not_found() -> None:
    decision = decided(D, {each: fresh(each) for each in FIRST})
    assert waits(decision, f"{A} (in no cluster yet)", D, "not in its --join list", "--advertise")


def test_a_node_on_the_list_by_another_name_is_told_which() -> None:
    first = ("localhost:1", "localhost:2")
    heard = {"localhost:1": SelfDescription(store(A), first, None)}
    assert waits(decided(A, heard, first), "localhost:1 leads to this node", "--advertise")


@pytest.mark.parametrize("address", [A, D])
def test_the_reasons_why_others_do_not_answer_are_told(address: str) -> None:
    connection_errors = {B: "nobody listens there"}
    decision = decide(address, store(address), FIRST, {}, NEW, connection_errors)
    assert waits(decision, f"{B} (nobody listens there), {C}")


def test_different_lists_found_nothing() -> None:
    heard = {B: fresh(B, (A, B)), C: fresh(C)}
    assert waits(decided(A, heard), B, "same list")


def test_two_addresses_of_one_node_found_nothing() -> None:
    heard = {B: fresh(B), C: fresh(B)}
    assert waits(decided(A, heard), "same node")


def test_a_founder_becomes_what_the_founding_record_says() -> None:
    nodes = cluster(A, B, C)
    assert decided(B, {A: member(A, nodes)}) == Become(2, nodes)


def test_a_wiped_disk_is_not_who_it_was() -> None:
    nodes = cluster(A, B, C)
    heard = {A: member(A, nodes), C: member(C, nodes)}
    assert decide(B, store(B, 2), FIRST, heard, NEW) == Join((A, B, C))


def test_the_founder_wiped_asks_to_join() -> None:
    nodes = cluster(A, B, C)
    heard = {B: member(B, nodes), C: fresh(C)}
    assert decide(A, store(A, 2), FIRST, heard, NEW) == Join((A, B, C))


def test_a_node_that_moved_before_it_began_asks_to_join() -> None:
    nodes = cluster(A, B, C)
    assert decide(D, store(B), FIRST, {A: member(A, nodes)}, NEW) == Join((A, B, C))


def test_a_retired_node_joins_as_a_new_one() -> None:
    nodes = cluster(A, B, C)
    gone = msgspec.structs.replace(nodes.nodes[1], retired=True)
    nodes = msgspec.structs.replace(nodes, nodes=(nodes.nodes[0], gone, nodes.nodes[2]))
    assert decided(B, {A: member(A, nodes)}) == Join((A, C))


def test_a_later_node_asks_the_nodes_that_are_known_last() -> None:
    old, new = cluster(A, B, C), cluster(A, B, C, D)
    heard = {A: member(A, old), B: member(B, new)}
    assert decide("e:1", store("e:1"), (A, B), heard, NEW) == Join((A, B, C, D))


def test_addresses_of_two_clusters_are_refused() -> None:
    heard = {A: member(A, cluster(A)), B: member(B, cluster(B, name=b"d" * 16))}
    with pytest.raises(Invalid, match="different clusters"):
        decided(C, heard)


# --- contents of disks ----------------------------------------------------------------------------


def test_a_founders_disk() -> None:
    engine, nodes = MemoryEngine(), cluster(A, B, C)
    engine.write(formation.identity_writes(store(A)), sync=True)
    assert formation.read_identity(engine) == formation.DiskIdentity(store(A))
    assert formation.known_nodes(engine) is None
    engine.write(formation.found_writes(nodes), sync=True)
    assert formation.known_nodes(engine) == nodes
    assert formation.first_members(engine) == (1, 2, 3)
    assert engine.get(SETTINGS_KEY) is None


@pytest.mark.parametrize("words", [{}, {SPLIT_BYTES: 0}, {SPLIT_BYTES: 0, SPLIT_LOAD: 2.0}])
def test_a_cluster_begins_with_splits_unless_its_founder_says_otherwise(
    words: dict[str, float],
) -> None:
    engine = MemoryEngine()
    engine.write(formation.found_writes(cluster(A), b"", founding_settings(words)), sync=True)
    found = SettingsInForce({}, engine.get(SETTINGS_KEY))
    assert found[SPLIT_BYTES] == words.get(SPLIT_BYTES, 512 << 20)
    assert found[SPLIT_LOAD] == words.get(SPLIT_LOAD, 0.5)


def test_the_first_seven_of_many_founders_vote() -> None:
    engine = MemoryEngine()
    nodes = cluster(*(f"{letter}:1" for letter in "abcdefghi"))
    engine.write(formation.found_writes(nodes), sync=True)
    assert formation.first_members(engine) == (1, 2, 3, 4, 5, 6, 7)


def test_the_disk_of_who_joins_has_no_members_of_its_own() -> None:
    engine, nodes = MemoryEngine(), cluster(A, B, C)
    engine.write(formation.become_writes(2, nodes), sync=True)
    assert formation.known_nodes(engine) == nodes
    assert formation.first_members(engine) == ()


def test_a_founding_that_was_cut_short_leaves_no_records() -> None:
    """The state is durable and the record of the store is not when the founding is cut short.

    The disk that then joins another cluster must not have members, nodes and the secret of the one
    that never was.
    """
    disk, never, nodes = MemoryDisk(), cluster(A, B, C), cluster(B, A, name=NEW)
    storage = open_storage(disk, Random(1))
    storage.write(formation.identity_writes(store(A)), sync=True)
    disk.write_faults[disk.writes + 2] = WriteFault.NOT_AT_ALL
    with pytest.raises(EngineFailed):
        storage.write(formation.found_writes(never, b"secret"), sync=True)
    storage.close()
    storage = open_storage(disk, Random(2))
    assert read_store(storage) is None
    assert formation.first_members(storage) == (1, 2, 3)
    storage.write(formation.become_writes(2, nodes), sync=True)
    assert formation.first_members(storage) == ()
    assert formation.known_nodes(storage) == nodes
    assert list(storage.iterate(keys.RANGE, b"\xff")) == []
    storage.write(formation.found_writes(never), sync=True)
    assert formation.known_nodes(storage) == never
    storage.close()


def test_an_embedded_store_becomes_a_cluster_of_one() -> None:
    engine, record = MemoryEngine(), StoreRecord(FORMAT_VERSION, b"c" * 16, 1)
    engine.write(formation.adopt_writes(record, A, store(A)), sync=True)
    assert formation.known_nodes(engine) == cluster(A)


def test_only_the_disk_of_a_node_alone_may_be_opened_embedded() -> None:
    engine = MemoryEngine()
    assert formation.node_alone(engine) is None
    engine.write(formation.identity_writes(store(A)), sync=True)
    with pytest.raises(Invalid, match="postroom serve"):
        formation.node_alone(engine)
    engine.write(formation.found_writes(cluster(A)), sync=True)
    assert formation.node_alone(engine) == 1
    others = msgspec.msgpack.encode(cluster(A, B))
    engine.write({formation.KNOWN_NODES_KEY: others}, sync=True)
    assert formation.node_alone(engine) == 1  # the replicated record counts, once there is one
    engine.write(formation.found_writes(cluster(A, B)), sync=True)
    with pytest.raises(Invalid, match=B):
        formation.node_alone(engine)


def test_a_foreign_database_is_no_fresh_disk() -> None:
    engine = MemoryEngine()
    check_empty(engine)
    engine.write({b"zzz": b""}, sync=True)
    with pytest.raises(StoreCorrupted, match="not a Postroom store"):
        check_empty(engine)


# --- many beginnings ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(150))
def test_random_beginnings_found_one_cluster(seed: int) -> None:
    """Invariants are checked by the beginning itself, after every step."""
    beginning = Beginning(Random(seed))
    beginning.disturb(steps=120)
    beginning.heal()
    assert len(beginning.clusters()) == 1, f"seed {seed}"
