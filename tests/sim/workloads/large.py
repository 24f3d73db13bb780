"""Large: keys of up to 8 KiB, values and messages of up to 1 MiB, now and then; most are small.

Whatever its size, a value is the name of its writer, again and again. A value that is cut, mixed
up, or of another key shows by itself therefore.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from postroom.limits import KEY_BYTES_MAX, MESSAGE_BYTES_MAX, VALUE_BYTES_MAX
from tests.sim.workloads.workload import Client

KEYS = 3
INBOX = b"large inbox/" + b"i" * 1000
SIZES = (0, 1, 20, 300, 5_000, 70_000, VALUE_BYTES_MAX)
WEIGHTS = (10, 10, 40, 20, 10, 4, 1)


def _key(number: int) -> bytes:
    return (b"large/%d/" % number).ljust((20, 600, KEY_BYTES_MAX)[number], b"k")


def _value(token: bytes, size: int) -> bytes:
    pattern = token + b"|"
    return (pattern * (size // len(pattern) + 1))[:size]


def _require_sound(value: bytes | None) -> None:
    if value:
        token = value.partition(b"|")[0]
        sound = value == _value(token, len(value))
        assert sound, f"{len(value)} bytes that begin with {value[:40]!r} are not as written"


class Large:
    """A workload of large keys, values and messages."""

    clients = 3

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: nothing is there."""

    async def start(self, client: Client) -> None:
        """Write, read and send."""
        while client.goes_on():
            chance = client.random.random()
            if chance < 0.5:
                await client.attempt(client.db.run(self._write, client, client.token()))
            elif chance < 0.75:
                await client.attempt(self._read(client))
            else:
                await client.attempt(client.db.run(self._take, client))
            await client.pause(0.3)

    async def _write(self, tx: Any, client: Client, token: bytes) -> None:
        key = _key(client.random.randrange(KEYS))
        if client.random.random() < 0.5:
            _require_sound(await tx.get(key))
        (size,) = client.random.choices(SIZES, WEIGHTS)
        tx.put(key, _value(token, size))
        if client.random.random() < 0.4:
            (size,) = client.random.choices(SIZES, WEIGHTS)
            tx.enqueue_message(INBOX, _value(token, min(size, MESSAGE_BYTES_MAX)))

    async def _read(self, client: Client) -> bool:
        async for _, value in client.db.scan(b"large/", b"large0"):
            _require_sound(value)
        return True

    async def _take(self, tx: Any, client: Client) -> None:
        most = client.random.choice([None, 10_000])
        for message in await tx.reap_queue(INBOX, 10, max_bytes=most):
            _require_sound(message.value)

    async def check(self, db: CoreDatabase) -> None:
        """Check that all of it is sound."""
        for number in range(KEYS):
            _require_sound(await db.get(_key(number)))
        for message in await db.peek(INBOX, 1000):
            _require_sound(message.value)
