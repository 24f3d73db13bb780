"""The stored records of staging, in the keyspace ``03 range 09`` (:mod:`postroom.kv.keys`).

::

    query ─▶ QueryRecord  last batch; while it is applied: of which job, and how far
          ─▶ Winners      attempts to be applied, in order
    job   ─▶ JobRecord    open, published or fenced
          ─▶ attempt ─▶ AttemptRecord   how many chunks
                     ─▶ number ─▶ a chunk: MessagePack, an array of rows
    name  ─▶ LoadRecord   a bulk load
    swept                 where the next step of sweeping begins
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.kv import keys
from postroom.messaging.staging_requests import StagedRow, Winner

OPEN: Final = 1
PUBLISHED: Final = 2
FENCED: Final = 3


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The position up to which a publication is applied: winner, chunk and row, counted from 0."""

    job: bytes
    winner: int = 0
    chunk: int = 0
    row: int = 0


class QueryRecord(msgspec.Struct, frozen=True, array_like=True):
    """The last batch of a query.

    Attributes:
        batch: its number.
        at: when it was published.
        once: whether the query has only this one; the record may be deleted some time after it.
        position: the position while it is being applied; ``None``: all of it is.
        dead: how many of its rows could not be carried out, and became dead letters.
    """

    batch: int
    at: int
    once: bool
    position: Position | None
    dead: int = 0


class JobRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A try to write a batch.

    Attributes:
        state: ``OPEN``, ``PUBLISHED`` or ``FENCED``.
        at: when it last staged something, about; or when it was fenced.
    """

    state: int
    at: int
    query: bytes
    batch: int
    sink: bytes


class AttemptRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The number of chunks of an attempt, and the number after the last of them."""

    chunks: int
    end: int


class LoadRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A bulk load: which run of it may add rows (empty: none), and whether it is finished."""

    run: bytes
    done: bool
    at: int
    start: bytes
    end: bytes | None


encode = msgspec.msgpack.encode
queries: Final = msgspec.msgpack.Decoder(QueryRecord)
winners: Final = msgspec.msgpack.Decoder(list[Winner])
jobs: Final = msgspec.msgpack.Decoder(JobRecord)
attempts: Final = msgspec.msgpack.Decoder(AttemptRecord)
loads: Final = msgspec.msgpack.Decoder(LoadRecord)
rows: Final = msgspec.msgpack.Decoder(list[StagedRow])


class Places:
    """The engine keys of these records."""

    def __init__(self, range_id: int) -> None:
        def prefix(part: bytes) -> bytes:
            return keys.staging_prefix(range_id, part)

        self.part = prefix
        self.queries = prefix(keys.STAGED_QUERY)
        self._winners = prefix(keys.STAGED_WINNERS)
        self.jobs = prefix(keys.STAGED_JOB)
        self.attempts = prefix(keys.STAGED_ATTEMPT)
        self._chunks = prefix(keys.STAGED_CHUNK)
        self.loads = prefix(keys.STAGED_LOAD)
        self.swept = prefix(keys.STAGED_SWEPT)

    def query(self, query: bytes) -> bytes:
        """Return the key of the record of a query."""
        return self.queries + query

    def winners(self, query: bytes) -> bytes:
        """Return the key of the attempts that the publication of a query applies."""
        return self._winners + query

    def job(self, job: bytes) -> bytes:
        """Return the key of the record of a job."""
        return self.jobs + job

    def attempt(self, job: bytes, attempt: bytes) -> bytes:
        """Return the key of the record of an attempt.

        Without an attempt, it is the key prefix of a job.
        """
        return self.attempts + job + attempt

    def chunk(self, job: bytes, attempt: bytes, number: int) -> bytes:
        """Return the key of a chunk."""
        return self._chunks + job + attempt + keys.u32(number)

    def load(self, name: bytes) -> bytes:
        """Return the key of the record of a bulk load."""
        return self.loads + name
