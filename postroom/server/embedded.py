"""The embedded store: ``open`` opens a store in this process, which is its only node.

It is the same node as in a cluster, with a group of one: consensus, leases and storage work exactly
alike.
"""

from __future__ import annotations

import random  # noqa: TID251 - here instances are made, to be passed in
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from postroom.client import arguments
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import Codec, resolve
from postroom.client.sender import Sender
from postroom.client.values import Status, position_infos, service_infos, storage_info
from postroom.kv.clock import SystemClock, TimeSource, Timestamp
from postroom.kv.engine import Engine
from postroom.kv.engine_folder import EngineName
from postroom.kv.memory import MemoryEngine
from postroom.kv.opening import check_engine_name
from postroom.limits import (
    DISK_RESERVE_BYTES,
    GC_TTL_SECONDS,
    LOG_SEGMENT_BYTES_MIN,
    MEMORY_BYTES,
    MEMORY_BYTES_MIN,
    SYNC_INTERVAL_SECONDS,
)
from postroom.messaging.requests import ReadCounters
from postroom.raft.interface import NoPeers
from postroom.ranges.protections import ReadPositions
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.cluster.formation import node_alone
from postroom.server.describe import service_status, storage_status
from postroom.server.local_cluster import check_no_local_cluster
from postroom.server.node import Node
from postroom.server.opening import open_storage
from postroom.server.served_store import ServedInThread, address_of, serve_on_loop
from postroom.server.thread_driver import ThreadDriver

MEMORY: Final = ":memory:"
Durability = Literal["commit", "interval", "none"]


def _options(
    durability: Durability,
    gc_ttl: float,
    disk_reserve_bytes: int,
    memory_bytes: int,
    slow: float | None = None,
) -> NodeOptions:
    if durability not in ("commit", "interval", "none"):
        raise ValueError(f'durability is "commit", "interval" or "none", not {durability!r}')
    if isinstance(gc_ttl, bool) or not isinstance(gc_ttl, int | float):
        raise TypeError(f"gc_ttl is a number of seconds, not {type(gc_ttl).__name__}")
    if not gc_ttl > 0:
        raise ValueError(f"gc_ttl is a number of seconds above 0, not {gc_ttl}")
    arguments.count(disk_reserve_bytes, "disk_reserve_bytes", 0)
    arguments.count(memory_bytes, "memory_bytes", MEMORY_BYTES_MIN)
    if slow is not None and not arguments.number(slow, "slow") >= 0:
        raise ValueError(f"slow is a number of seconds from 0 on, or None, not {slow}")
    return NodeOptions(
        sync=durability == "commit",
        sync_interval_seconds=SYNC_INTERVAL_SECONDS if durability == "interval" else None,
        gc_ttl_seconds=gc_ttl,
        disk_reserve_bytes=disk_reserve_bytes,
        memory_bytes=memory_bytes,
        slow_seconds=slow,
        rests_alone=True,
    )


class _Files(NamedTuple):
    """The way in which the folder is opened, or made."""

    create: bool
    engine: EngineName | None
    log_segment_bytes: int | None


def _open_engine(
    path: str | Path, randomness: random.Random, files: _Files, memory_bytes: int
) -> Engine:
    check_engine_name(files.engine)
    if str(path) == MEMORY:
        return MemoryEngine()
    check_no_local_cluster(Path(path))
    return open_storage(
        Path(path),
        randomness,
        create=files.create,
        engine_name=files.engine,
        segment_bytes=files.log_segment_bytes,
        memory_bytes=memory_bytes,
    )


def _open_node(
    path: str | Path,
    options: NodeOptions,
    clock: TimeSource,
    randomness: random.Random,
    files: _Files,
) -> Node:
    segment_bytes = files.log_segment_bytes
    if segment_bytes is not None and segment_bytes < LOG_SEGMENT_BYTES_MIN:
        raise ValueError(
            f"log_segment_bytes is at least {LOG_SEGMENT_BYTES_MIN}, not {segment_bytes}"
        )
    if not isinstance(path, str | Path):
        raise TypeError(f"path is a folder's name or a Path, not {type(path).__name__}")
    if path == "":
        raise ValueError(f'path is empty: give the name of a folder, or "{MEMORY}"')
    engine = _open_engine(path, randomness, files, options.memory_bytes)
    try:
        node_id = node_alone(engine)
        if node_id is not None:
            options = msgspec.structs.replace(options, node_id=node_id)
        return Node(engine, clock, randomness, NoPeers(), options)
    except BaseException:
        engine.close()
        raise


class _StatusReader:
    """A reader of the status of an embedded node."""

    def __init__(self, driver: AsyncioDriver | ThreadDriver, path: str | Path) -> None:
        self._driver = driver
        self._path = str(path)

    async def __call__(self, sender: Sender) -> Status:
        """Return the present state of the store, which a sender of this process asks."""
        counters = await sender.send(ReadCounters())
        positions = await sender.send(ReadPositions())
        node = self._driver.node
        now = self._driver.now()
        return Status(
            self._path,
            node.options.node_id,
            node.root.group.term,
            node.applied_index(),
            Timestamp(now),
            node.engine.disk_bytes(),
            counters,
            services=service_infos(service_status(node.replicas.hosted.values())),
            storage=storage_info(storage_status(node)),
            refused=node.refused,
            positions=position_infos(positions, now),
            store_id=node.store.cluster_id,
        )


def open(  # noqa: A001, PLR0913 - a public name, as of files; each argument is an option
    path: str | Path,
    *,
    durability: Durability = "commit",
    codec: str | Codec | None = None,
    gc_ttl: float = GC_TTL_SECONDS,
    disk_reserve_bytes: int = DISK_RESERVE_BYTES,
    create: bool = True,
    engine: EngineName | None = None,
    log_segment_bytes: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    slow: float | None = None,
    serve: str | None = None,
) -> blocking.CoreDatabase:
    """Open the store in the folder ``path``, creating it if it is missing.

    A folder that contains anything but a store is refused, and left as it is.

    Args:
        path: a folder, or ``":memory:"`` for a store that is gone when it is closed.
        durability: ``"commit"``: synced before a commit returns. ``"interval"``: synced every 50
            ms; a loss of power may cost that much. ``"none"``: written; synced about twice a
            second, for the clock.
        codec: ``None`` for bytes, ``"msgpack"``, ``"json"``, or an object with ``encode`` and
            ``decode``.
        gc_ttl: seconds that overwritten versions stay readable.
        disk_reserve_bytes: writes are refused when less than this is free on the device.
        create: whether a store is made if the folder is missing or empty.
        engine: ``"leveldb"`` or ``"rocksdb"``; ``None``: the one that wrote the folder, or for a
            new folder the first of them that is installed.
        log_segment_bytes: the length of new segments of the log, of which there mostly are two.
            ``None``: 64 MiB, or an eighth of the free space if that is less.
        memory_bytes: the budget for the parts of the store that are kept in memory: memtables, and
            the values and blocks that were read last. At least 8 MiB. Files of the store that the
            system maps into memory do not count.
        slow: commits and locks that take this many seconds are logged, with what they waited for,
            and so are all conflicts (logger ``postroom.slow``); ``None``: nothing of this is.
        serve: ``"unix:PATH"``: other programs of this user may use the store at this socket, while
            it is open: ``postroom.connect("unix:PATH")``. ``"unix:"``: the socket is in the folder,
            and the command line finds it with ``--path``. ``None``: this process is the only one.

    Returns:
        The store. It is a context manager, which closes it at the end of the block.

    Raises:
        StoreLocked: another process (or this one) has it open.
        Invalid: the folder contains something else, or belongs to a node of a cluster with other
            nodes. Or there is no store in it, and ``create`` is false. Or there can be no socket.
        VersionMismatch: another engine wrote the folder, or another version of Postroom.
        StoreCorrupted: what the folder contains is damaged.
        AccessDenied: the file system does not permit it.
        Unavailable: it cannot be opened now: the device has no room, for example.
        ValueError: an argument is impossible.

    Examples:
        >>> with postroom.open("data/shop", codec="json") as db:
        ...     db.put(b"user/1", {"name": "Ada"})
        >>> with postroom.open("data/shop", codec="json") as db:
        ...     db.get(b"user/1")
        {'name': 'Ada'}
    """
    randomness = _randomness()
    values = resolve(codec)
    options = _options(durability, gc_ttl, disk_reserve_bytes, memory_bytes, slow)
    files = _Files(create, engine, log_segment_bytes)
    address = None if serve is None else address_of(serve, path, MEMORY)
    node = _open_node(path, options, SystemClock(), randomness, files)
    driver = ThreadDriver(node, randomness)
    driver.start()
    close: Close = driver.close
    if address is not None:
        close = _serve_in_thread(driver, address, _folder_of(path))
    core = asynchronous.CoreDatabase(driver, values, _StatusReader(driver, path), close)
    return blocking.CoreDatabase(driver, core)


Close: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


def _folder_of(path: str | Path) -> Path | None:
    return None if str(path) == MEMORY else Path(path).absolute()


def _serve_in_thread(driver: ThreadDriver, address: str, folder: Path | None) -> Close:
    """Serve a store to other programs; return the function that ends this, and closes it."""
    try:
        served = ServedInThread(driver, address, folder)
    except BaseException:
        driver.run(driver.close())
        raise

    async def close() -> None:
        served.close()
        await driver.close()

    return close


async def _serve_on_loop(driver: AsyncioDriver, address: str, folder: Path | None) -> Close:
    """Serve a store to other programs; return the function that ends this, and closes it."""
    try:
        served = await serve_on_loop(driver, address, folder)
    except BaseException:
        await driver.close()
        raise

    async def close() -> None:
        await served.close()
        await driver.close()

    return close


async def open_async(  # noqa: PLR0913 - each argument is an option
    path: str | Path,
    *,
    durability: Durability = "commit",
    codec: str | Codec | None = None,
    gc_ttl: float = GC_TTL_SECONDS,
    disk_reserve_bytes: int = DISK_RESERVE_BYTES,
    create: bool = True,
    engine: EngineName | None = None,
    log_segment_bytes: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    slow: float | None = None,
    serve: str | None = None,
) -> asynchronous.CoreDatabase:
    """Open the store in the folder ``path``, for asyncio, creating it if it is missing.

    The node runs on the calling event loop.

    Args:
        path: a folder, or ``":memory:"`` for a store that is gone when it is closed.
        durability: see :func:`postroom.open`.
        codec: see :func:`postroom.open`.
        gc_ttl: see :func:`postroom.open`.
        disk_reserve_bytes: see :func:`postroom.open`.
        create: see :func:`postroom.open`.
        engine: see :func:`postroom.open`.
        log_segment_bytes: see :func:`postroom.open`.
        memory_bytes: see :func:`postroom.open`.
        slow: see :func:`postroom.open`.
        serve: see :func:`postroom.open`.

    Returns:
        The store. It is an asynchronous context manager, which closes it at the end of the block.

    Raises:
        StoreLocked: another process (or this one) has it open.
        Invalid: the folder contains something else, or belongs to a node of a cluster with other
            nodes. Or there is no store in it, and ``create`` is false. Or there can be no socket.
        VersionMismatch: another engine wrote the folder, or another version of Postroom.
        StoreCorrupted: what the folder contains is damaged.
        AccessDenied: the file system does not permit it.
        Unavailable: it cannot be opened now: the device has no room, for example.
        ValueError: an argument is impossible.
    """
    randomness = _randomness()
    values = resolve(codec)
    options = _options(durability, gc_ttl, disk_reserve_bytes, memory_bytes, slow)
    files = _Files(create, engine, log_segment_bytes)
    address = None if serve is None else address_of(serve, path, MEMORY)
    node = _open_node(path, options, SystemClock(), randomness, files)
    driver = AsyncioDriver(node, randomness)
    driver.start()
    close: Close = driver.close
    if address is not None:
        close = await _serve_on_loop(driver, address, _folder_of(path))
    return asynchronous.CoreDatabase(driver, values, _StatusReader(driver, path), close)


def open_in_memory(
    clock: TimeSource, randomness: random.Random, codec: str | Codec | None
) -> blocking.CoreDatabase:
    """Open a store in memory with a clock other than the system's, for tests of applications."""
    values, node = resolve(codec), _node_in_memory(clock, randomness)
    driver = ThreadDriver(node, randomness)
    driver.start()
    core = asynchronous.CoreDatabase(driver, values, _StatusReader(driver, MEMORY), driver.close)
    return blocking.CoreDatabase(driver, core)


async def open_in_memory_async(
    clock: TimeSource, randomness: random.Random, codec: str | Codec | None
) -> asynchronous.CoreDatabase:
    """Open a store in memory, for asyncio: the node runs on the running event loop."""
    values, node = resolve(codec), _node_in_memory(clock, randomness)
    driver = AsyncioDriver(node, randomness)
    driver.start()
    return asynchronous.CoreDatabase(driver, values, _StatusReader(driver, MEMORY), driver.close)


def _node_in_memory(clock: TimeSource, randomness: random.Random) -> Node:
    options = _options("none", GC_TTL_SECONDS, DISK_RESERVE_BYTES, MEMORY_BYTES)
    return _open_node(MEMORY, options, clock, randomness, _Files(True, None, None))


def _randomness() -> random.Random:
    """Return a generator seeded by the operating system: ids must differ between processes."""
    return random.Random(random.SystemRandom().randbytes(32))
