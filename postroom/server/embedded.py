"""``open``: a store in this process, which is its only node.

The same node as in a cluster, with a group of one: consensus, leases and storage work exactly
alike, there is just nobody else to ask.
"""

from __future__ import annotations

import random  # noqa: TID251 - here instances are made, to be passed in
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import Codec, resolve
from postroom.client.values import Status, service_infos
from postroom.kv import keys
from postroom.kv.clock import Clock, SystemClock, Timestamp
from postroom.kv.engine import Engine
from postroom.kv.leveldb import LevelDBEngine
from postroom.kv.memory import MemoryEngine
from postroom.limits import DISK_RESERVE_BYTES, GC_TTL_SECONDS, SYNC_INTERVAL_SECONDS
from postroom.messaging.requests import ReadCounters
from postroom.raft.transport import NoPeers
from postroom.server.cluster.formation import node_alone
from postroom.server.drivers import AsyncioDriver, ThreadDriver
from postroom.server.local_folder import check_no_local_cluster
from postroom.server.node import Node, NodeOptions

MEMORY: Final = ":memory:"
Durability = Literal["commit", "interval", "none"]


def _options(durability: Durability, gc_ttl: float, disk_reserve_bytes: int) -> NodeOptions:
    if durability not in ("commit", "interval", "none"):
        raise ValueError(f'durability is "commit", "interval" or "none", not {durability!r}')
    if not gc_ttl > 0:
        raise ValueError(f"gc_ttl is a number of seconds above 0, not {gc_ttl}")
    return NodeOptions(
        sync=durability == "commit",
        sync_interval_seconds=SYNC_INTERVAL_SECONDS if durability == "interval" else None,
        gc_ttl_seconds=gc_ttl,
        disk_reserve_bytes=disk_reserve_bytes,
    )


def _open_engine(path: str | Path) -> Engine:
    if str(path) == MEMORY:
        return MemoryEngine()
    check_no_local_cluster(Path(path))
    return LevelDBEngine.open(Path(path))


def _open_node(
    path: str | Path, options: NodeOptions, clock: Clock, randomness: random.Random
) -> Node:
    if not isinstance(path, str | Path):
        raise TypeError(f"path is a folder's name or a Path, not {type(path).__name__}")
    engine = _open_engine(path)
    try:
        node_id = node_alone(engine)
        if node_id is not None:
            options = msgspec.structs.replace(options, node_id=node_id)
        return Node(engine, clock, randomness, NoPeers(), options)
    except BaseException:
        engine.close()
        raise


class _StatusReader:
    """Reads the status of an embedded node."""

    def __init__(self, driver: AsyncioDriver | ThreadDriver, path: str | Path) -> None:
        self._driver = driver
        self._path = str(path)

    async def __call__(self) -> Status:
        """How the store is now."""
        counters = await self._driver.send(ReadCounters())
        node = self._driver.node
        return Status(
            self._path,
            node.options.node_id,
            node.replica.group.term,
            node.replica.state.applied_index(),
            Timestamp(self._driver.now()),
            node.engine.approximate_bytes(b"", keys.DATA_END),
            counters,
            services=service_infos(node.services.status()),
        )


def open(  # noqa: A001 - a public name, as of files
    path: str | Path,
    *,
    durability: Durability = "commit",
    codec: str | Codec | None = None,
    gc_ttl: float = GC_TTL_SECONDS,
    disk_reserve_bytes: int = DISK_RESERVE_BYTES,
) -> blocking.Database:
    """Opens the store in the folder ``path``, creating it if it is missing.

    Args:
        path: a folder, or ``":memory:"`` for a store that is gone when it is closed.
        durability: ``"commit"``: synced before a commit returns. ``"interval"``: synced every 50
            ms; a loss of power may cost that much. ``"none"``: written; synced about
            twice a second, for the clock.
        codec: ``None`` for bytes, ``"msgpack"``, ``"json"``, or an object with ``encode`` and
        ``decode``. gc_ttl: seconds that overwritten versions stay readable.
        disk_reserve_bytes: writes are refused when less than this is free on the device.

    Raises:
        StoreLocked: another process (or this one) has it open.
        Invalid: the folder is that of a node of a cluster, which has others.
        StoreCorrupted, VersionMismatch, AccessDenied, Unavailable: it cannot be opened.
    """
    randomness = _randomness()
    values = resolve(codec)
    options = _options(durability, gc_ttl, disk_reserve_bytes)
    node = _open_node(path, options, SystemClock(), randomness)
    driver = ThreadDriver(node, randomness)
    driver.start()
    core = asynchronous.Database(driver, values, _StatusReader(driver, path), driver.close)
    return blocking.Database(driver, core)


async def open_async(
    path: str | Path,
    *,
    durability: Durability = "commit",
    codec: str | Codec | None = None,
    gc_ttl: float = GC_TTL_SECONDS,
    disk_reserve_bytes: int = DISK_RESERVE_BYTES,
) -> asynchronous.Database:
    """The asyncio form of :func:`open`: the node runs on the calling event loop."""
    randomness = _randomness()
    values = resolve(codec)
    options = _options(durability, gc_ttl, disk_reserve_bytes)
    node = _open_node(path, options, SystemClock(), randomness)
    driver = AsyncioDriver(node, randomness)
    driver.start()
    return asynchronous.Database(driver, values, _StatusReader(driver, path), driver.close)


def _randomness() -> random.Random:
    """Seeded by the operating system: ids must differ between processes."""
    return random.Random(random.SystemRandom().randbytes(32))


__all__: list[Any] = ["Durability", "open", "open_async"]
