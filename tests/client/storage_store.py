"""A store on a storage in memory: it has a log, gathered turns and an engine, as on a disk."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

from postroom.client import sync as blocking
from postroom.client.codec import resolve
from postroom.client.database import CoreDatabase
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.kv.storage import Storage
from postroom.raft.interface import NoPeers
from postroom.server.assembly import NodeOptions
from postroom.server.node import Node
from tests.client.hand_driver import HandClock, HandDriver
from tests.client.stores import Store

LOG_ID = bytes(16)


class StorageStore:
    """A node on a storage; time is moved by hand.

    Attributes:
        db: the client.
        driver: what runs the node.
        node: what it runs.
        storage: what the node writes.
    """

    def __init__(self, disk: MemoryDisk | None = None, **options: Any) -> None:
        self.disk = disk or MemoryDisk()
        clock = HandClock()
        self.storage = Storage.open(
            MemoryEngine(self.disk), self.disk.log, lambda: LOG_ID, gathered_keys_max=4
        )
        self.driver: Any = HandDriver(clock, Random(1))
        core = CoreDatabase(self.driver, resolve(None), Store._no_status, self.driver.close)
        self.db = blocking.CoreDatabase(self.driver, core)
        self.node = Node(self.storage, clock, Random(2), NoPeers(), NodeOptions(**options))
        self.driver.attach(self.node)
