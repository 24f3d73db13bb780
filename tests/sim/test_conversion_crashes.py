"""A folder of the format before the log is converted while the power fails, at every write.

The first format had everything in the engine, the entries of consensus too. Opening moves them
into a log. Wherever that ends, the next opening finds all of it in one place or the other.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from random import Random  # noqa: TID251 (seeded)

import msgspec
import pytest

from postroom.kv import keys
from postroom.kv.memory import MemoryDisk, MemoryEngine, WriteFault
from postroom.server.node import NodeOptions
from postroom.server.store import STORE_KEY, read_store
from tests.client.stores import Store
from tests.sim import checkers, disks
from tests.sim.host import PowerFailure, ProcessDied
from tests.sim.world import World

KEYS = 12


@cache
def old() -> MemoryDisk:
    """What the node left when it wrote everything into the engine."""
    disk = MemoryDisk()
    made = Store(partial(MemoryEngine, disk))
    for number in range(KEYS):
        made.db.put(b"key/%d" % number, b"%d" % number)
    with made.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"message")
        tx.enqueue_message(b"later", b"message", deliver_at=3600.0)
    made.db.close()
    engine = MemoryEngine(disk)
    record = read_store(engine)
    if record is not None:
        first = msgspec.structs.replace(record, format_version=1)
        engine.write({STORE_KEY: msgspec.msgpack.encode(first)}, sync=True)
    engine.close()
    assert not disk.log.files
    prefix = keys.raft_log_prefix(1)
    assert list(disk.content.iterate(prefix, prefix + b"\xff")), "what consensus has promised"
    return disk


def begun() -> World:
    world = World(1, NodeOptions(disk_reserve_bytes=0), in_parts=False)
    world.host.disk = disks.copied(old())
    world.heals = True
    return world


def check(world: World) -> None:
    """Everything is there, and the store goes on."""
    db = world.database()

    async def found() -> list[bytes | None]:
        return [await db.get(b"key/%d" % number) for number in range(KEYS)]

    assert world.retry(found) == [b"%d" % number for number in range(KEYS)]
    assert [each.value for each in world.retry(lambda: db.peek(b"inbox"))] == [b"message"]
    world.retry(lambda: db.put(b"more", b"1"))
    world.host.write_gathered()
    assert world.host.reopen()
    assert world.retry(lambda: db.get(b"more")) == b"1"
    world.host.write_gathered()
    content = disks.content(world.host.disk)
    checkers.check(content)
    prefix = keys.raft_log_prefix(1)
    left = [key for key, _ in world.host.disk.content.iterate(prefix, prefix + b"\xff")]
    assert left == [prefix + b"a"], "the entries are in the log alone"


@cache
def writes_of_the_conversion() -> int:
    world = begun()
    before = world.host.disk.writes
    assert world.host.open()
    writes = world.host.disk.writes - before
    check(world)
    return writes


def opened_until_it_is(world: World) -> None:
    for _ in range(5):
        if world.host.serves() or world.host.reopen():
            return
    raise AssertionError("it does not open any more")


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
@pytest.mark.parametrize("again", [0, 1, 2], ids=["once", "and at the next", "and at the third"])
def test_a_crash_at_every_write(power: bool, again: int) -> None:
    """Once, or once more while it is converted again."""
    assert writes_of_the_conversion() >= 3
    for number in range(1, writes_of_the_conversion() + 1):
        world = begun()
        host = world.host
        left = {host.disk.writes + number, host.disk.writes + number + again}

        def fail(at: int, host: object = host, left: set[int] = left) -> None:
            if at in left:
                left.remove(at)
                if power:
                    raise PowerFailure
                host.crash(power=False)  # type: ignore[attr-defined]
                raise ProcessDied

        host.disk.at_write = fail
        host.open()
        assert len(left) < 1 + bool(again), "it has struck"
        opened_until_it_is(world)
        host.disk.at_write = None
        check(world)


@pytest.mark.parametrize("fault", list(WriteFault))
def test_every_write_fails(fault: WriteFault) -> None:
    for number in range(1, writes_of_the_conversion() + 1):
        world = begun()
        world.host.disk.write_faults[world.host.disk.writes + number] = fault
        world.host.open()
        world.host.disk.write_faults.clear()
        opened_until_it_is(world)
        check(world)


# --- a node of a cluster, whose log has entries that are not applied ------------------------------

SEGMENT_BYTES = 16 * 1024
WRITES = 40
"""More than a conversion and closing make."""
PREFIX = keys.raft_log_prefix(1)
ENTRIES = {PREFIX + b"e" + keys.u64(number): bytes([number]) * 3000 for number in range(1, 60)}
"""Several segments of them."""
STATE = {keys.store_key("something"): b"of the store", b"\x06data": b"state"}


def converting(power: bool, at: int) -> MemoryDisk:
    """A disk whose conversion ended at its write ``at``, counted from 1."""
    disk = MemoryDisk()
    engine = MemoryEngine(disk)
    engine.write({**ENTRIES, PREFIX + b"h": b"promised", **STATE}, sync=True)
    engine.close()
    fatal = disk.writes + at

    def fail(number: int) -> None:
        if number == fatal:
            raise PowerFailure

    disk.at_write = fail
    with suppress(PowerFailure):
        disks.open_storage(disk, Random(at), SEGMENT_BYTES).close()
    disk.at_write = None
    disk.crash(Random(at) if power else None)
    return disk


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_entries_are_in_one_place_or_the_other(power: bool) -> None:
    for at in range(1, WRITES + 1):
        disk = converting(power, at)
        storage = disks.open_storage(disk, Random(at), SEGMENT_BYTES)
        found = dict(storage.iterate(PREFIX, PREFIX + b"\xff"))
        assert found == {**ENTRIES, PREFIX + b"h": b"promised"}, f"cut at write {at}"
        assert {key: storage.get(key) for key in STATE} == STATE
        storage.close()
