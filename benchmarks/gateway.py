"""The gateway: gRPC for other languages, with the client that is generated for Python.

Node, gateway and client are processes of their own on loopback. A client in Python takes as much
processor time as the gateway does, so on a machine with few cores the client is what limits the
rate. The value is therefore what the gateway can do on one core: how many transactions it has
carried out for each second of its own processor time. The details have the rate itself.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cluster import (
    CONNECT_SECONDS,
    Nodes,
    _processor_seconds,
    connect,
    free_addresses,
    started_nodes,
)
from benchmarks.harness import Measured, Settings, benchmark, percentiles
from benchmarks.transactions import VALUE, _in_flight, _names
from postroom.gateway import prepare_environment

if TYPE_CHECKING:
    from postroom.gateway import postroom_pb2 as pb

_START = "from postroom.cli.main import main; main()"
Operation = Callable[["_Stub", int], Awaitable[object]]


class _Stub:
    """A client of the calls that are measured, over a channel of ``grpc.aio``."""

    def __init__(self, channel: Any) -> None:
        from postroom.gateway import postroom_pb2 as pb  # noqa: PLC0415 - of an extra

        def call(name: str, kind: str, request: str, response: str) -> Any:
            return getattr(channel, kind)(
                f"/postroom.v1.Postroom/{name}",
                request_serializer=getattr(pb, request).SerializeToString,
                response_deserializer=getattr(pb, response).FromString,
            )

        unary, stream = "unary_unary", "stream_stream"
        self.Get = call("Get", unary, "GetRequest", "GetResponse")
        self.Put = call("Put", unary, "PutRequest", "PutResponse")
        self.Execute = call("Execute", unary, "TransactionRequest", "TransactionResponse")
        self.Transaction = call("Transaction", stream, "TransactionRequest", "TransactionResponse")
        self.BatchExecute = call(
            "BatchExecute", stream, "BatchExecuteRequest", "BatchExecuteResponse"
        )


@contextmanager
def started_gateway(folder: Path, nodes: Nodes) -> Iterator[tuple[str, int]]:
    """Start a gateway of ``nodes``; hand out its address and its process's id."""
    address = free_addresses(1)[0]
    command = [sys.executable, "-c", _START, "gateway", "--connect", nodes.addresses]
    command += ["--insecure", "--listen", address]
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
    try:
        yield address, process.pid
    finally:
        process.kill()
        process.wait()


async def _rate(
    address: str, pid: int, nodes: Nodes, seconds: float, operation: Operation
) -> tuple[float, dict[str, Any]]:
    """Return operations for each second of the gateway's processor time, and details."""
    import grpc.aio  # noqa: PLC0415 - its environment is set before

    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.wait_for(channel.channel_ready(), CONNECT_SECONDS)
        stub = _Stub(channel)

        async def once(number: int) -> None:
            await operation(stub, number)

        await _in_flight(min(0.5, seconds), 64, once)
        before, node = _processor_seconds(pid), sum(nodes.processor_seconds())
        done, elapsed, latencies = await _in_flight(seconds, 64, once)
        used = _processor_seconds(pid) - before
        node = sum(nodes.processor_seconds()) - node
    details = percentiles(latencies)
    details["rate"] = round(done / elapsed)
    details["gateway_cpu_us"] = round(used * 1e6 / max(done, 1), 1)
    details["gateway_cores"] = round(used / elapsed, 2)
    details["node_cpu_us"] = round(node * 1e6 / max(done, 1), 1)
    return done / max(used, 0.01), details


def _measured(settings: Settings, operation: Operation) -> Measured:
    prepare_environment()

    async def run(nodes: Nodes, address: str, pid: int) -> tuple[float, dict[str, Any]]:
        async with await connect(nodes.addresses) as db:
            await db.put(b"ready", b"")
        return await _rate(address, pid, nodes, settings.seconds, operation)

    with (
        started_nodes(settings.folder, 1) as nodes,
        started_gateway(settings.folder, nodes) as (address, pid),
    ):
        return Measured(*asyncio.run(run(nodes, address, pid)))


def _transaction(number: int) -> pb.TransactionRequest:
    """Return a transaction that reads, writes and sends."""
    from postroom.gateway import postroom_pb2 as pb  # noqa: PLC0415 - of an extra

    key, inbox, _ = _names(number)
    return pb.TransactionRequest(
        operations=[
            pb.Operation(get=pb.GetRequest(key=key)),
            pb.Operation(put=pb.PutRequest(key=key, value=VALUE)),
            pb.Operation(send=pb.SendRequest(key=inbox, value=VALUE)),
            pb.Operation(commit=pb.CommitRequest()),
        ]
    )


async def _outbox(stub: _Stub, number: int) -> None:
    call = stub.Transaction()
    await call.write(_transaction(number))
    response = await call.read()
    assert response.results[3].commit.timestamp
    await call.code()


async def _execute(stub: _Stub, number: int) -> None:
    response = await stub.Execute(_transaction(number))
    assert response.results[3].commit.timestamp


class _Batches:
    """A client of one stream ``BatchExecute``: a request has the transactions that wait."""

    def __init__(self) -> None:
        self._call: Any = None
        self._waiting: list[pb.TransactionRequest] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._count = 0

    async def run(self, stub: _Stub, number: int) -> None:
        """Run a transaction."""
        if self._call is None:
            self._call = stub.BatchExecute()
            self._reading = asyncio.create_task(self._read())
        request = _transaction(number)
        self._count += 1
        request.number = self._count
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        self._waiting.append(request)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        response = await answer
        assert response.results[3].commit.timestamp, response

    async def _send(self) -> None:
        from postroom.gateway import postroom_pb2 as pb  # noqa: PLC0415 - of an extra

        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await self._call.write(pb.BatchExecuteRequest(transactions=waiting))
        self._sending = None

    async def _read(self) -> None:
        while response := await self._call.read():
            for each in response.transactions:
                self._answers.pop(each.number).set_result(each)


async def _put(stub: _Stub, number: int) -> None:
    from postroom.gateway import postroom_pb2 as pb  # noqa: PLC0415 - of an extra

    await stub.Put(pb.PutRequest(key=_names(number)[0], value=VALUE))


async def _get(stub: _Stub, number: int) -> None:
    from postroom.gateway import postroom_pb2 as pb  # noqa: PLC0415 - of an extra

    await stub.Get(pb.GetRequest(key=_names(number)[0]))


@benchmark("gateway: outbox transaction, 64 in flight, one core", "/s", 4_000)
def gateway_outbox(settings: Settings) -> Measured:
    """Measure streams that are one transaction each, with one request."""
    return _measured(settings, _outbox)


@benchmark("gateway: outbox transaction as one call, 64 in flight, one core", "/s", 4_000)
def gateway_execute(settings: Settings) -> Measured:
    """Measure transactions whose operations are known beforehand, each a single call."""
    return _measured(settings, _execute)


@benchmark("gateway: outbox transaction of BatchExecute, 64 in flight, one core", "/s", 4_000)
def gateway_batch_execute(settings: Settings) -> Measured:
    """Measure transactions whose operations are known beforehand, on one stream."""
    return _measured(settings, _Batches().run)


@benchmark("gateway: put, 64 in flight, one core", "/s", 4_000)
def gateway_put(settings: Settings) -> Measured:
    """Measure unary puts: transactions of one write."""
    return _measured(settings, _put)


@benchmark("gateway: get, 64 in flight, one core", "/s")
def gateway_get(settings: Settings) -> Measured:
    """Measure unary gets of the newest value."""
    return _measured(settings, _get)
