"""Connections to PostgreSQL and Redis, as far as benchmarks need them: no packages are installed.

Both protocols are simple enough to be written by hand: PostgreSQL's version 3.0 with the simple
query, and Redis's RESP2. Each connection has one request under way.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

_VERSION: Final = 3 << 16


class PostgresConnection:
    """A connection of the user ``postgres``, who needs no password."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> PostgresConnection:
        """Connect to a server on this machine."""
        connection = cls(*await asyncio.open_connection("127.0.0.1", port))
        connection._send(b"", _VERSION.to_bytes(4, "big") + b"user\0postgres\0\0")
        await connection._ready()
        return connection

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def execute(self, statement: str) -> list[bytes]:
        """Execute a statement; return the first column of its rows."""
        self._send(b"Q", statement.encode() + b"\0")
        return await self._ready()

    async def notified(self) -> None:
        """Wait for a notification of a channel that this connection listens to."""
        while (await self._message())[0] != b"A":
            pass

    def _send(self, kind: bytes, content: bytes) -> None:
        self._writer.write(kind + (len(content) + 4).to_bytes(4, "big") + content)

    async def _message(self) -> tuple[bytes, bytes]:
        head = await self._reader.readexactly(5)
        content = await self._reader.readexactly(int.from_bytes(head[1:], "big") - 4)
        if head[:1] == b"E":
            raise RuntimeError(f"PostgreSQL: {content!r}")
        return head[:1], content

    async def _ready(self) -> list[bytes]:
        """Read the answer up to where the next statement may be sent."""
        rows = []
        while True:
            kind, content = await self._message()
            if kind == b"Z":
                return rows
            if kind == b"D":
                rows.append(content[6 : 6 + max(int.from_bytes(content[2:6], "big"), 0)])


class RedisConnection:
    """A connection to a server without a password."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> RedisConnection:
        """Connect to a server on this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def execute(self, *words: bytes) -> Any:
        """Execute a command, and return its answer."""
        parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        self._writer.write(b"*%d\r\n%b" % (len(words), parts))
        return await self._answer()

    async def _answer(self) -> Any:
        line = (await self._reader.readuntil(b"\r\n"))[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RuntimeError(f"Redis: {rest!r}")
        if kind == b"*":
            return [await self._answer() for _ in range(int(rest))]
        if kind == b"$" and int(rest) >= 0:
            return (await self._reader.readexactly(int(rest) + 2))[:-2]
        return rest if kind == b"+" else int(rest)
