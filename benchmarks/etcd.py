"""The program etcd beside our three nodes, in the same run: for machines with ``etcd``.

Three processes on loopback with folders of their own, synced, as etcd is by default. Tasks of one
Python process ask them over gRPC. The few messages that are needed are encoded by hand
(``etcd/api/etcdserverpb/rpc.proto``): the packages for Python want other versions of gRPC than
ours. gRPC itself is imported only to measure: every benchmark imports this module, and some report
the memory of their process.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.cluster import free_addresses
from benchmarks.harness import Measured, Settings, benchmark, percentiles
from benchmarks.transactions import VALUE, _in_flight, _names

_PUT = "/etcdserverpb.KV/Put"
_TXN = "/etcdserverpb.KV/Txn"
_READY_SECONDS = 120.0
_LESS, _VERSION = 2, 0

Call = Callable[[bytes], Awaitable[bytes]]


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def put_request(key: bytes, value: bytes) -> bytes:
    """Return a ``PutRequest``."""
    return _bytes(1, key) + _bytes(2, value)


def range_request(key: bytes, end: bytes = b"", limit: int = 0) -> bytes:
    """Return a ``RangeRequest`` for a key, or for the first keys of a span."""
    span = _bytes(1, key) + (_bytes(2, end) if end else b"")
    return span + (_number(3, limit) if limit else b"")


def delete_request(key: bytes, end: bytes) -> bytes:
    """Return a ``DeleteRangeRequest`` for a span."""
    return _bytes(1, key) + _bytes(2, end)


def txn_request(compared: bytes, *puts: tuple[bytes, bytes]) -> bytes:
    """Return a ``TxnRequest`` with some puts.

    Its condition is always true: a key has fewer than 2^40 versions.
    """
    compare = _number(1, _LESS) + _number(2, _VERSION) + _bytes(3, compared) + _number(4, 1 << 40)
    operations = (_bytes(2, put_request(key, value)) for key, value in puts)
    return _bytes(1, compare) + b"".join(_bytes(2, each) for each in operations)


def watch_request(key: bytes) -> bytes:
    """Return a ``WatchRequest`` that asks for the changes of a key."""
    return _bytes(1, _bytes(1, key))


@contextmanager
def started_etcd(settings: Settings) -> Iterator[list[str]]:
    """Start three nodes of etcd; yield their addresses, and stop them at the end of the block."""
    clients, peers = free_addresses(3), free_addresses(3)
    members = ",".join(f"n{place}=http://{peer}" for place, peer in enumerate(peers))
    processes = []
    try:
        for place, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            command = ["etcd", "--name", f"n{place}", "--initial-cluster", members]
            command += ["--data-dir", str(settings.folder / f"etcd{place}")]
            command += ["--listen-peer-urls", f"http://{peer}"]
            command += ["--initial-advertise-peer-urls", f"http://{peer}"]
            command += ["--listen-client-urls", f"http://{client}"]
            command += ["--advertise-client-urls", f"http://{client}"]
            with (settings.folder / f"etcd{place}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stderr=log, stdout=log))
        yield clients
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _rate(
    clients: list[str], settings: Settings, in_flight: int, method: str, request: Any
) -> Measured:
    import grpc.aio  # noqa: PLC0415 - see the module

    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(each)) for each in clients
        ]
        calls: list[Call] = [each.unary_unary(method) for each in channels]
        await wait_until_ready(calls[0], request(0))

        async def once(number: int) -> None:
            await calls[number % len(calls)](request(number))

        await _in_flight(settings.seconds / 6, in_flight, once)
        done, elapsed, latencies = await _in_flight(settings.seconds, in_flight, once)
    return Measured(done / elapsed, percentiles(latencies))


async def wait_until_ready(call: Call, request: bytes) -> None:
    """Wait until there is a leader."""
    import grpc.aio  # noqa: PLC0415 - see the module

    until = time.monotonic() + _READY_SECONDS
    while True:
        try:
            await call(request)
        except grpc.aio.AioRpcError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)
        else:
            return


def _measured(settings: Settings, in_flight: int, method: str, request: Any) -> Measured:
    with started_etcd(settings) as clients:
        return asyncio.run(_rate(clients, settings, in_flight, method, request))


def _transaction(number: int) -> bytes:
    key, *_ = _names(number)
    return txn_request(key, (key, VALUE), (key + b"/sent", VALUE))


def _put(number: int) -> bytes:
    return put_request(_names(number)[0], VALUE)


def transaction_64(settings: Settings) -> Measured:
    """Measure etcd's transactions a second, from 64 tasks: one key is compared, two are put."""
    return _measured(settings, 64, _TXN, _transaction)


def transaction_1(settings: Settings) -> Measured:
    """Measure the median time of etcd's transaction in milliseconds, one at a time."""
    measured = _measured(settings, 1, _TXN, _transaction)
    return Measured(measured.details["p50_ms"], {"per_second": round(measured.value)})


def put_64(settings: Settings) -> Measured:
    """Measure etcd's puts of 100 bytes a second, from 64 tasks of one client."""
    return _measured(settings, 64, _PUT, _put)


if shutil.which("etcd"):
    benchmark("peer: etcd, 3 nodes, transaction, 64 in flight", "/s")(transaction_64)
    benchmark("peer: etcd, 3 nodes, transaction, one at a time", "ms")(transaction_1)
    benchmark("peer: etcd, 3 nodes, put, 64 in flight", "/s")(put_64)
