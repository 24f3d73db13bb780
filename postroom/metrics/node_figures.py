"""The figures of a node and its disk, read between two turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from postroom.kv.engine import Budget
from postroom.kv.storage import Storage
from postroom.metrics.table import Point
from postroom.ranges.settings import DISK_RESERVE
from postroom.server.describe import service_status
from postroom.server.node import Node
from postroom.version import VERSION

NAMES: Final = {"parked": "waits", "blocked": "blocked_reads"}
"""The kinds of held entries whose names inside say less."""


def consensus(node: Node) -> Iterator[Point]:
    """Read the consensus groups."""
    groups, root = list(node.groups()), node.root.group
    yield Point("postroom_has_leader", root.leader is not None)
    yield Point("postroom_leads", root.is_leader)
    led, leaderless = (sum(each) for each in zip(
        *[(group.is_leader, group.leader is None) for group in groups], strict=True
    ))  # fmt: skip
    yield Point("postroom_ranges", led, ("led",))
    yield Point("postroom_ranges", len(groups) - led - leaderless, ("followed",))
    yield Point("postroom_ranges", leaderless, ("leaderless",))
    yield Point("postroom_term", root.term)
    yield Point("postroom_elections_total", sum(each.campaigns for each in groups))
    yield Point("postroom_proposals_total", sum(each.proposed for each in groups))
    yield Point("postroom_entries_applied_total", sum(each.applied_index for each in groups))
    for peer, known in root.progress().items():
        behind = max(root.last_index - known.match_index, 0)
        yield Point("postroom_peer_entries_behind", behind, (str(peer),))
        yield Point("postroom_peer_silent_seconds", known.silent_seconds, (str(peer),))


def work(node: Node) -> Iterator[Point]:
    """Read the work of the node: turns, requests, entries in memory, services."""
    yield Point("postroom_turns_total", node.turns)
    yield Point("postroom_turn_seconds_total", node.turn_seconds)
    yield Point("postroom_evaluation_seconds_total", node.evaluation_seconds)
    yield Point("postroom_sync_seconds", (tuple(node.syncs.counts), node.syncs.total))
    replicas = [each.replica for each in node.replicas.hosted.values()]
    for kind, waiting in (
        ("client", sum(len(each.clients) for each in replicas)),
        ("upkeep", sum(len(each.upkeep) for each in replicas)),
    ):
        yield Point("postroom_requests_waiting", waiting, (kind,))
    no_room = sum(each.admission.refused for each in replicas)
    yield Point("postroom_requests_refused_total", no_room, ("no_room",))
    for kind, number in node.sizes().items():
        yield Point("postroom_held_entries", number, (NAMES.get(kind, kind).replace(" ", "_"),))
    for service in service_status(node.replicas.hosted.values()):
        name = (service.name.replace(" ", "_"),)
        yield Point("postroom_service_running", service.running, name)
        yield Point("postroom_service_failures", service.failures, name)


def storage(node: Node) -> Iterator[Point]:
    """Read the disk, the log, the engine and the budget of memory."""
    engine, tables = node.engine, node.engine.table_files()
    yield Point("postroom_info", 1, (VERSION, tables.engine, str(node.node_id)))
    budget = Budget(node.options.memory_bytes)
    for share, size in (
        ("memtables", budget.memory_bytes // 2), ("values", budget.values_bytes),
        ("filter", budget.heads_bytes), ("blocks", budget.blocks_bytes),
    ):  # fmt: skip
        yield Point("postroom_memory_budget_bytes", size, (share,))
    yield Point("postroom_disk_bytes", engine.disk_bytes())
    yield Point("postroom_disk_free_bytes", engine.free_bytes())
    reserve = node.settings[DISK_RESERVE]
    yield Point("postroom_disk_reserve_bytes", reserve + engine.working_bytes() if reserve else 0)
    yield Point("postroom_writes_refused", bool(node.refused))
    yield Point("postroom_disk_damaged", bool(node.damage.found))
    yield Point("postroom_tables", tables.tables)
    segments, size = engine.log_segments if isinstance(engine, Storage) else (0, 0)
    yield Point("postroom_log_segments", segments)
    yield Point("postroom_log_bytes", size)
    compaction = node.compaction
    yield Point("postroom_compactions_total", compaction.runs if compaction else 0)
    yield Point("postroom_compaction_seconds_total", compaction.seconds if compaction else 0)


def clocks(node: Node) -> Iterator[Point]:
    """Read the clock of this node beside those of others."""
    yield Point("postroom_clock_offset_seconds", node.clock_offset_seconds())
    for peer, offset in node.clock_offsets().items():
        yield Point("postroom_peer_clock_offset_seconds", offset, (str(peer),))
